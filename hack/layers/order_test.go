package main

import (
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// parse reads uses like "a>b a>c".
func parse(text string) uses {
	u := uses{}
	for pair := range strings.FieldsSeq(text) {
		from, to, _ := strings.Cut(pair, ">")
		u[use{from, to}] = "Name"
	}
	return u
}

func TestUsesBackUp(t *testing.T) {
	for text, want := range map[string]int{
		"a>b b>c a>c":                 0,
		"c>b b>a c>a":                 0,
		"a>b b>a":                     1,
		"a>b b>c c>a":                 1,
		"a>b a>c a>d b>d c>d d>a b>c": 1,
		// The files form two groups, which can be ordered without a use back up.
		"a>b b>c x>y y>z a>x y>b": 0,
	} {
		t.Run(text, func(t *testing.T) {
			back := parse(text).back()
			if len(back) != want {
				t.Errorf("%v lead back up, want %d", back, want)
			}
		})
	}
}

// A package of real files has uses, and the command prints those that lead back up.
func TestShow(t *testing.T) {
	var out strings.Builder
	errtest.Must(t, show(&out, false, "../wordcheck"))
	if !strings.Contains(out.String(), "hack/wordcheck: 5 files, ") {
		t.Errorf("%s", out.String())
	}
	if err := show(&out, false, "./nowhere"); err == nil {
		t.Error("a package that is not there has uses")
	}
}
