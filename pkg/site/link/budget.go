package link

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/site/inventory"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// roundWrites is about the number of writes of one round, if each site has as many changes as it
// may write: two seconds at 50 writes per second, and as much again for removals. A site that
// changes without pause delays a change of another by a round.
const roundWrites = 100

// Payers of writes that no site causes alone.
const (
	payerExports = "exports of this cluster"
	payerLinks   = "links of this cluster"
)

// payerOfRecords returns the payer for what this cluster states to a site. The site itself is the
// payer for what is mirrored from it.
func payerOfRecords(site string) string { return "to " + site }

// payerOfNodes returns the payer for the SiteNodes of a site. They have a share of their own, because
// they come before all other writes of the site.
func payerOfNodes(site string) string { return "nodes of " + site }

// removalsOf returns the payer for removals. They have a share of their own, because they come
// after all other writes of a payer.
func removalsOf(payer string) string { return "removals of " + payer }

// budget bounds the writes of one round for each payer. What is beyond it is written in later
// rounds, which begin at once.
type budget struct {
	share     int
	used      map[string]int
	postponed map[string]int // by payer
}

func newBudget(sites int) *budget {
	return &budget{share: max(roundWrites/max(sites, 1), 10), used: map[string]int{},
		postponed: map[string]int{}}
}

// waiting returns how many writes wait for the next round.
func (b *budget) waiting() (n int) {
	for _, postponed := range b.postponed {
		n += postponed
	}
	return n
}

// spend reports whether the payer has a write left, and counts it.
func (b *budget) spend(payer string) bool {
	if b.used[payer] >= b.share {
		b.postponed[payer]++
		return false
	}
	b.used[payer]++
	return true
}

// payerOfImport returns the payer for the objects of an import: its clusters together, because each
// of them can change these objects. A cluster that exports what others export has no other way to
// use their shares.
func payerOfImport(clusters []string) string {
	return strings.Join(slices.Sorted(slices.Values(clusters)), ",")
}

// sourcesOf returns the clusters of an import.
func sourcesOf(m *mirror.Import) (clusters []string) {
	for _, s := range m.Sources {
		clusters = append(clusters, s.Cluster)
	}
	return clusters
}

// payersOfDerived returns the payers for the derived Services of the imports that exist, by the name
// of the Service.
func payersOfDerived(imports map[record.Key]inventory.Import) map[record.Key]string {
	payers := make(map[record.Key]string, len(imports))
	for k, i := range imports {
		payers[record.Key{Namespace: k.Namespace, Name: mirror.DerivedName(k.Name)}] =
			payerOfImport(slices.Collect(maps.Keys(i.First)))
	}
	return payers
}

// inTurn returns the keys in order, and sets the payer for each. The keys of a payer begin with the
// one at which its budget ended in the last round, so a fixed order starves none. what names the
// objects.
func (w *writer) inTurn(what string, keys []record.Key,
	payer func(record.Key) string) iter.Seq[record.Key] {
	var first, then []record.Key
	for _, k := range keys {
		if k.String() < w.resume[what+" "+payer(k)] {
			then = append(then, k)
		} else {
			first = append(first, k)
		}
	}

	return func(yield func(record.Key) bool) {
		begun := map[string]bool{}
		for _, k := range slices.Concat(first, then) {
			p := payer(k)
			turn, used, postponed := what+" "+p, w.used[p], w.postponed[p]
			w.payer = p
			if !yield(k) {
				return
			}
			if _, ended := w.ended[turn]; !ended && w.postponed[p] > postponed {
				w.ended[turn] = k.String()
				if !begun[p] && w.used[p] > used { // It alone needs more than the share.
					w.ended[turn] += "\x00" // behind it
				}
			}
			begun[p] = true
		}
	}
}
