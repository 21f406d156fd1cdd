// Package moduletest holds the tests of the Dagger module at the top of this project. They need no engine: a stand-in takes its place.
// They are in a package of their own, as whatever imports internal/dagger can only be started by an engine, tests included.
package moduletest
