// Package killtest has no code, only tests: they kill and interrupt whole runs at every step and compare this machine with what it was
// before. They run in a native lab of their own, so that other work on the machine is not in what they see.
package killtest
