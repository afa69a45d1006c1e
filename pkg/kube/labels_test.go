package kube

import (
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// The changes that are passed on make up the labels of all Nodes, and have no Node without a
// change.
func TestChangesOfNodeLabelsMakeUpAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newStore(parseNode, sameNode, func() {})
		from := s.follow()
		passed, got := nodeLabels{}, nodeLabels{}
		drawNode := func() *object.Object {
			e := nodeEntry{labels: rapid.SampledFrom([]map[string]string{nil, {}, {"gpu": "yes"},
				{"gpu": "no"}}).Draw(t, "labels")}
			e.node.Zone = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")
			return object.Parsed("", fmt.Sprint("node-", rapid.IntRange(0, 4).Draw(t, "node")), e)
		}
		do := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		for range 20 {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				var list []any
				for range rapid.IntRange(0, 5).Draw(t, "length") {
					list = append(list, drawNode())
				}
				do(s.Replace(list, ""))
			case 1, 2:
				do(s.Delete(drawNode()))
			default:
				do(s.Add(drawNode()))
			}
			if rapid.Bool().Draw(t, "later") {
				continue
			}

			touched, _ := s.take(from)
			changed, gone := passed.update(s, touched)
			for name, labels := range changed {
				if was, had := got[name]; had && sameLabels(was, labels) {
					t.Fatalf("the labels of %s are passed on, but did not change", name)
				}
				got[name] = labels
			}
			for _, name := range gone {
				if _, had := got[name]; !had {
					t.Fatalf("%s is gone, but was not passed on", name)
				}
				delete(got, name)
			}
			want := nodeLabels{}
			for name, e := range s.byName {
				want[name] = e.labels
			}
			if !maps.EqualFunc(got, want, sameLabels) {
				t.Fatalf("labels %v, want %v", got, want)
			}
		}
	})
}

func TestStoreWithoutReaderKeepsNoChanges(t *testing.T) {
	s := newStore(parseNode, sameNode, func() {})
	r := s.follow()
	s.unfollow(r)
	if err := s.Add(object.Parsed("", "node", nodeEntry{})); err != nil {
		t.Fatal(err)
	}
	if len(r.names) != 0 || len(s.readers) != 0 {
		t.Errorf("%d readers, and changes %v after unfollow", len(s.readers), r.names)
	}
}

// BenchmarkLabelsOfOneNode measures what is read and compared when one Node of 10,000 changed.
func BenchmarkLabelsOfOneNode(b *testing.B) {
	s := newStore(parseNode, sameNode, func() {})
	from := s.follow()
	put := func(i, version int) {
		labels := map[string]string{"version": fmt.Sprint(version)}
		for l := range 12 {
			labels[fmt.Sprint("kubernetes.io/label-", l)] = fmt.Sprint("value-", i, l)
		}
		_ = s.Add(object.Parsed("", fmt.Sprint("node-", i), nodeEntry{labels: labels}))
	}
	for i := range 10000 {
		put(i, 0)
	}
	passed := nodeLabels{}
	touched, _ := s.take(from)
	passed.update(s, touched)
	for i := 0; b.Loop(); i++ {
		put(500, i+1)
		touched, _ := s.take(from)
		if changed, gone := passed.update(s, touched); len(changed) != 1 || len(gone) != 0 {
			b.Fatal(changed, gone)
		}
	}
}
