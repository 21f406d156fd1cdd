package lab

// readTSC reads the processor's time stamp counter.
func readTSC() uint64
