package run

import (
	"context"
	"slices"
	"strings"
	"sync"

	"dagger/parity/internal/catalogue"
	"dagger/parity/internal/report"
)

// breaches follows what becomes of the contract's cases, and ends the labs whose cases all stand on
// a check that did not pass. It is safe for concurrent use.
type breaches struct {
	all  []catalogue.Case // the contract's cases of the run
	labs []*labLife

	mu      sync.Mutex
	results map[string]report.Case // what became of those, by id
}

// labLife is a lab as long as it has cases that are not done.
type labLife struct {
	ctx  context.Context // done when the lab is to end
	end  context.CancelCauseFunc
	left []catalogue.Case

	contracts []catalogue.Case // the contract's cases that it has, of which its step knows
	ended     []catalogue.Case // those that it had left when it was ended for a check of the contract
}

// breachError is the end of a lab whose cases stand on a check of the contract that did not pass.
// It says which.
type breachError string

func (e breachError) Error() string { return string(e) }

func newBreaches(ctx context.Context, labs [][]catalogue.Case) *breaches {
	b := &breaches{results: map[string]report.Case{}}
	for _, mine := range labs {
		life := &labLife{left: append([]catalogue.Case{}, mine...)}
		life.ctx, life.end = context.WithCancelCause(ctx)
		b.labs = append(b.labs, life)
		for _, c := range mine {
			if c.IsContract() {
				b.all, life.contracts = append(b.all, c), append(life.contracts, c)
			}
		}
	}
	return b
}

// explain gives the cases of a lab that was ended, and adds why to those that this cut off, cleaned
// up in time, and do not say it.
func (b *breaches) explain(life *labLife, cases []report.Case, why breachError) []report.Case {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, c := range cases {
		cut := slices.ContainsFunc(life.ended, func(o catalogue.Case) bool { return o.ID() == c.ID })
		said := slices.ContainsFunc(c.Problems, func(p string) bool { return strings.Contains(p, string(why)) })
		if cut && c.Verdict == report.Inconclusive && !said {
			cases[i].Problems = append([]string{"it was ended: " + string(why)}, c.Problems...)
		}
	}
	return cases
}

// close lets go of the labs' contexts.
func (b *breaches) close() {
	for _, life := range b.labs {
		life.end(nil)
	}
}

// contracts gives the ids of the contract's cases.
func (b *breaches) contracts() (ids []string) {
	for _, c := range b.all {
		ids = append(ids, c.ID())
	}
	return ids
}

// broken returns what became of those of the contract's cases that have ended and did not pass.
func (b *breaches) broken() (results []report.Case) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.all {
		if result, ok := b.results[c.ID()]; ok && result.Verdict != report.Pass {
			results = append(results, result)
		}
	}
	return results
}

// done takes the result of a case. A lab is ended when no case that it has left can be run; as long
// as there is one, its step goes on, and leaves out those that it knows cannot be.
func (b *breaches) done(result report.Case) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, life := range b.labs {
		for i, c := range life.left {
			if c.ID() == result.ID {
				life.left = append(life.left[:i:i], life.left[i+1:]...)
				break
			}
		}
	}
	for _, c := range b.all {
		if c.ID() == result.ID {
			b.results[result.ID] = result
		}
	}
	for _, life := range b.labs {
		if b.lost(life.left, life.contracts) != "" {
			continue // its own step knows, and is about to end
		}
		if why := b.lost(life.left, b.all); why != "" && life.ended == nil {
			life.ended = life.left
			life.end(breachError(why))
		}
	}
}

// lost says why none of the cases can be run, by what became of some of the contract's; empty when
// one can, or there is none.
func (b *breaches) lost(left, contracts []catalogue.Case) (why string) {
	for _, c := range left {
		mine := ""
		for _, contract := range contracts {
			if result, ok := b.results[contract.ID()]; ok && mine == "" {
				if check := c.Missing(b.all, contract, result); check != "" {
					mine = catalogue.NotWithout(contract.ID(), check)
				}
			}
		}
		if mine == "" {
			return ""
		}
		if why == "" {
			why = mine
		}
	}
	return why
}
