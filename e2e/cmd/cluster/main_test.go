package main

import "testing"

func TestHelpIsNoFailure(t *testing.T) {
	if err := run([]string{"-h"}); err != nil {
		t.Error(err)
	}
}
