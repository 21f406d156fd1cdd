package step

import (
	"os"

	"dagger/parity/internal/fault"
	"dagger/parity/internal/report"
)

// misbehaving gives what tells of the cases as the fault says that this process was asked for.
func misbehaving(emit func(report.Event)) func(report.Event) {
	if fault.On("") {
		return emit
	}
	checks := 0
	return func(e report.Event) {
		if e.Kind == report.CheckStarted {
			if checks++; checks == 6 && fault.On(fault.StepDies) {
				emit(e)
				os.Exit(0)
			}
		}
		if e.Kind == report.CaseDone {
			result := *e.Result
			switch {
			case fault.On(fault.CaseTwice):
				emit(e)
			case fault.On(fault.CaseOfOldRun):
				result.RunID = "oldrun00"
			case fault.On(fault.CheckSkipped):
				result.Checks = result.Checks[:len(result.Checks)-1]
			}
			e.Result = &result
		}
		emit(e)
	}
}
