package nftables

import (
	"encoding/binary"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/policy/nftables/chains"
)

// edited returns the rule texts of a chain after an edit. It applies the edit as the kernel does.
func edited(have []listed, e edit) (texts []string) {
	rules := slices.Clone(have)
	at := func(handle []byte) int {
		return slices.IndexFunc(rules, func(r listed) bool { return string(r.handle) == string(handle) })
	}
	for _, h := range e.remove {
		i := at(h)
		rules = slices.Delete(rules, i, i+1)
	}
	for _, r := range e.add {
		i := len(rules)
		if r.before != nil {
			i = at(r.before)
		}
		rules = slices.Insert(rules, i, listed{text: r.Text})
	}
	for _, r := range rules {
		texts = append(texts, r.text)
	}
	return texts
}

func handled(texts []string) (have []listed) {
	for i, text := range texts {
		have = append(have, listed{binary.BigEndian.AppendUint64(nil, uint64(i+1)), text})
	}
	return have
}

func TestEditMakesAnyChainAnyOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		texts := func(label string) (out []string) {
			for _, n := range rapid.SliceOfN(rapid.IntRange(0, 9), 0, 10).Draw(t, label) {
				out = append(out, strconv.Itoa(n))
			}
			return out
		}
		have, want := texts("have"), texts("want")
		var rules []chains.Rule
		for _, text := range want {
			rules = append(rules, chains.Rule{Text: text})
		}

		e, ok := editOf(handled(have), rules)
		if !ok {
			return
		}
		if got := edited(handled(have), e); !slices.Equal(got, want) {
			t.Errorf("%q became %q, want %q", have, got, want)
		}
	})
}

func TestEditKeepsTheRulesThatStay(t *testing.T) {
	rules := func(texts ...string) (out []chains.Rule) {
		for _, text := range texts {
			out = append(out, chains.Rule{Text: text})
		}
		return out
	}

	for name, tt := range map[string]struct {
		have, want  []string
		remove, add int
		ok          bool
	}{
		"as before":          {[]string{"a", "b"}, []string{"a", "b"}, 0, 0, true},
		"one more":           {[]string{"a", "c"}, []string{"a", "b", "c"}, 0, 1, true},
		"one at each end":    {[]string{"b"}, []string{"a", "b", "c"}, 0, 2, true},
		"one less":           {[]string{"a", "b", "c"}, []string{"a", "c"}, 1, 0, true},
		"one for another":    {[]string{"a", "b", "z"}, []string{"a", "x", "z"}, 1, 1, true},
		"foreign":            {[]string{"a", "", "b"}, []string{"a", "b"}, 1, 0, true},
		"all others":         {[]string{"a", "b"}, []string{"c", "d"}, 2, 2, true},
		"another order":      {[]string{"b", "a"}, []string{"a", "b"}, 0, 0, false},
		"one that is twice":  {[]string{"a", "a"}, []string{"a"}, 0, 0, false},
		"two that are equal": {[]string{"a"}, []string{"a", "a"}, 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			e, ok := editOf(handled(tt.have), rules(tt.want...))
			if ok != tt.ok || ok && (len(e.remove) != tt.remove || len(e.add) != tt.add) {
				t.Errorf("%d removed, %d added, %v; want %d, %d, %v", len(e.remove), len(e.add), ok,
					tt.remove, tt.add, tt.ok)
			}
		})
	}
}
