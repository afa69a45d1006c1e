// Package errtest ends tests at errors that none of their cases is about. Only tests import it.
package errtest

import (
	"errors"
	"testing"
)

// Must fails the test and ends it unless all errors are nil.
func Must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// Check fails the test unless all errors are nil, and lets it go on.
func Check(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// Of returns the error of a call whose value does not matter: Must(t, Of(f())).
func Of(_ any, err error) error { return err }
