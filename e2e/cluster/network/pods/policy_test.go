package pods

import (
	"strings"
	"testing"
)

func TestTriesAreJudged(t *testing.T) {
	for name, tt := range map[string]struct {
		tried, answered uint64
		mostly, never   bool
	}{
		"all answered":             {100, 100, true, false},
		"three of four answered":   {100, 75, true, false},
		"less":                     {100, 74, false, false},
		"one answered":             {100, 1, false, false},
		"none answered":            {100, 0, false, true},
		"nothing was tried at all": {0, 0, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			// A single bad result among good results suffices for an error.
			good := func(answered uint64) tries { return tries{Tried: 10, Answered: answered} }
			one := tries{Proto: "udp", To: "198.18.0.1:7000", Tried: tt.tried,
				Answered: tt.answered}
			if err := mostlyAnswered([]tries{good(10), one}); (err == nil) != tt.mostly {
				t.Errorf("as mostly answered: %v", err)
			}
			if err := neverAnswered([]tries{good(0), one}); (err == nil) != tt.never {
				t.Errorf("as never answered: %v", err)
			}
		})
	}
}

// Tries from the time before the policies were in force do not count for the rollout.
func TestTriesSince(t *testing.T) {
	got := since([]tries{{Proto: "tcp", Tried: 9, Answered: 1}},
		[]tries{{Proto: "tcp", Tried: 29, Answered: 21, Error: "timed out"}})
	if want := (tries{Proto: "tcp", Tried: 20, Answered: 20, Error: "timed out"}); got[0] != want {
		t.Errorf("%+v, want %+v", got[0], want)
	}
}

func TestRevisionsOfNodesAreCompared(t *testing.T) {
	const control = `{"node":"control","answered":false}`
	node := func(name, revision string) string {
		return `{"node":"` + name + `","answered":true,"policyRevision":"` + revision + `"}`
	}
	for name, tt := range map[string]struct {
		nodes   []string
		refused string
	}{
		"one revision":  {[]string{control, node("a", "r1"), node("b", "r1")}, ""},
		"two revisions": {[]string{node("a", "r1"), node("b", "r2")}, "node b enforces revision"},
		"one without":   {[]string{node("a", "r1"), node("b", "")}, "node b enforces revision"},
		"none has one":  {[]string{node("a", ""), node("b", "")}, "node a enforces revision"},
		"one is silent": {[]string{control, node("b", "r1")}, "1 nodes answered, want 2"},
		"more than expected": {[]string{node("a", "r1"), node("b", "r1"), node("c", "r1")},
			"3 nodes answered, want 2"},
	} {
		t.Run(name, func(t *testing.T) {
			status := `{"well":true,"nodes":[` + strings.Join(tt.nodes, ",") + "]}"
			got, err := oneRevision([]byte(status), 2)
			if tt.refused == "" {
				if err != nil || got != "r1" {
					t.Errorf("revision %q, %v", got, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("error %v, want %q", err, tt.refused)
			}
		})
	}

	if _, err := oneRevision(nil, 2); err == nil {
		t.Error("no output is accepted")
	}
	if err := lastSays("node-2: it waits\n1 of 2 nodes\n", "1 of 2 nodes"); err != nil {
		t.Error(err)
	}
	if err := lastSays("2 of 2 nodes\nand more\n", "2 of 2 nodes"); err == nil {
		t.Error("a line before the last is accepted")
	}
}
