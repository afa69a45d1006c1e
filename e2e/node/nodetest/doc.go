// Package nodetest holds what the test packages of e2e/node share: making labs, and the steps that
// most of their cases are made of. It is imported by tests only.
//
// If a function fails, it ends the test, unless its comment differs. Functions that wait have a
// time limit. A step that only one package needs stays in that package.
//
// Start reading at NewLab.
package nodetest
