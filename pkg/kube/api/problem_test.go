package api

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

// A tenant with many malformed objects neither fills a status nor hides a failing request from it.
func TestProblemsOfObjectsAreBounded(t *testing.T) {
	s := &Server{Log: slog.New(slog.DiscardHandler)}
	s.Report("read services", errors.New("refused"))
	for i := range 1000 {
		s.Note(fmt.Sprintf("NetworkPolicy shop/%04d", i), "malformed")
	}
	got := s.Problems()
	if len(got) != maxObjects+2 || !slices.Contains(got, "read services: refused") ||
		!strings.HasPrefix(got[len(got)-1], "936 more objects have problems") {
		t.Errorf("%d problems: %.300q", len(got), got)
	}
	for i := range 999 {
		s.Note(fmt.Sprintf("NetworkPolicy shop/%04d", i), "")
	}
	if got = s.Problems(); !slices.Equal(got, []string{"NetworkPolicy shop/0999: malformed",
		"read services: refused"}) {
		t.Errorf("problems %q", got)
	}
}
