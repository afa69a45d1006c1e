// Package nodetest holds what the test packages of e2e/node share: making labs, and the steps that
// most of their cases are made of. It is imported by tests only.
//
// Its functions end the test when they fail, unless their comments differ. Functions that wait have
// a limit. A step that only one of the packages needs stays there.
//
// Start reading at NewLab.
package nodetest
