// Package spans tells what a run does as OpenTelemetry spans: one for each case, in it one for each phase, and in those one for each
// check, so that whatever shows traces shows the run's progress by name.
package spans

import (
	"context"
	"errors"
	"sync"
	"time"

	telemetry "github.com/dagger/otel-go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"dagger/parity/internal/report"
)

// Spans makes spans of events. It is safe for concurrent use; a nil one does nothing.
type Spans struct {
	provider *sdktrace.TracerProvider
	root     open

	mu    sync.Mutex
	cases map[string]*caseSpans
}

// caseSpans are the open spans of a case; phase and check are there while one is under way.
type caseSpans struct {
	whole, phase, check *open
	phaseName           string
}

// FromEnvironment gives spans for the place that OpenTelemetry's variables name, below the span that TRACEPARENT names; nil where they
// name no place. Close must be called.
func FromEnvironment(ctx context.Context) *Spans {
	exporter, ok := telemetry.ConfiguredSpanExporter(ctx)
	if !ok {
		return nil
	}
	processor := sdktrace.NewBatchSpanProcessor(exporter)
	if telemetry.LiveTracesEnabled { // also spans that have not ended are wanted
		processor = telemetry.NewLiveSpanProcessor(exporter)
	}
	return below(telemetry.Propagator.Extract(ctx, telemetry.NewEnvCarrier(true)), processor)
}

// below gives spans that are below the span of ctx.
func below(ctx context.Context, processor sdktrace.SpanProcessor) *Spans {
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithSpanProcessor(processor),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", "parity"))),
	)
	root := open{ctx: ctx, tracer: provider.Tracer("dagger/parity")}
	return &Spans{provider: provider, root: root, cases: map[string]*caseSpans{}}
}

// Event takes one event of a run.
func (s *Spans) Event(e report.Event) {
	if s == nil || e.Case == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cases[e.Case]
	if c == nil {
		c = &caseSpans{whole: s.root.start(e.Case, attribute.Bool(telemetry.UIRevealAttr, true))}
		s.cases[e.Case] = c
	}
	switch {
	case e.Kind == report.CheckStarted && e.Check != nil:
		c.enter(e.Check.Phase)
		c.check = c.around().start(e.Check.Name)
	case e.Kind == report.CheckDone && e.Check != nil:
		c.enter(e.Check.Phase) // a check need not have been announced
		if c.check == nil {
			c.check = c.around().start(e.Check.Name)
		}
		c.check.end(e.Check.Verdict, report.Details(*e.Check, ""))
		c.check = nil
	case e.Kind == report.CaseDone && e.Result != nil:
		c.end(e.Result.Verdict)
		delete(s.cases, e.Case)
	}
}

// closeDeadline bounds the sending of the last spans. Nobody must wait for a place that does not answer.
const closeDeadline = 5 * time.Second

// Close ends what has not ended and sends what has not been sent.
func (s *Spans) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.cases {
		c.end(report.Inconclusive)
	}
	clear(s.cases)
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(s.root.ctx), closeDeadline, errors.New("the place for spans did not answer"))
	defer cancel()
	return s.provider.Shutdown(ctx)
}

// around is the span that a check is below: the phase, or the case where there is none.
func (c *caseSpans) around() *open {
	if c.phase != nil {
		return c.phase
	}
	return c.whole
}

// enter ends the phase that is under way and starts the next one, unless they are the same.
func (c *caseSpans) enter(phase string) {
	if phase == c.phaseName {
		return
	}
	c.leave(report.Pass)
	if c.phaseName = phase; phase != "" {
		c.phase = c.whole.start(phase)
	}
}

// leave ends the phase that is under way, if any. Its checks have verdicts of their own: what it is given is the case's end.
func (c *caseSpans) leave(v report.Verdict) {
	if c.phase != nil {
		c.phase.end(v, "")
	}
	c.phase, c.phaseName = nil, ""
}

func (c *caseSpans) end(v report.Verdict) {
	if c.check != nil {
		c.check.end(report.Inconclusive, "it did not come to its end")
	}
	c.leave(v)
	c.whole.end(v, "")
}

// open is a span that has not ended, and makes those below it.
type open struct {
	ctx    context.Context
	tracer trace.Tracer
	span   trace.Span
}

func (o *open) start(name string, attributes ...attribute.KeyValue) *open {
	ctx, span := o.tracer.Start(o.ctx, name, trace.WithAttributes(attributes...))
	return &open{ctx: ctx, tracer: o.tracer, span: span}
}

// end ends a span with a verdict: one that is not a pass is an error, with what there is to say about it.
func (o *open) end(v report.Verdict, text string) {
	o.span.SetAttributes(attribute.String("parity.verdict", string(v)))
	if v != report.Pass {
		if text == "" {
			text = string(v)
		}
		o.span.SetStatus(codes.Error, text)
	}
	o.span.End()
}
