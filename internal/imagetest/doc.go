// Package imagetest has no code, only tests: they show how the reference CLI comes to the image of a workspace, with a real registry, a real
// Docker Engine, both providers, and the stand-in for msb, whose guests have what was loaded. They run in a native lab of their own.
package imagetest
