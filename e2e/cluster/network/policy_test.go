package network

import "testing"

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
			// Beside one that is as wanted: one bad is enough.
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

// What was tried while policies came in force is not of the rollout.
func TestTriesSince(t *testing.T) {
	got := since([]tries{{Proto: "tcp", Tried: 9, Answered: 1}},
		[]tries{{Proto: "tcp", Tried: 29, Answered: 21, Error: "timed out"}})
	if want := (tries{Proto: "tcp", Tried: 20, Answered: 20, Error: "timed out"}); got[0] != want {
		t.Errorf("%+v, want %+v", got[0], want)
	}
}
