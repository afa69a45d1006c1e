package pod

import (
	"os"
	"time"
)

// Touched is when files were last made, replaced or removed in the folders of records and of
// reservations. Two equal ones that are not zero mean that nothing was in between. The zero value
// means that a change may go unseen.
type Touched struct{ records, reservations time.Time }

// settled is how long ago the last change has to be: a later one within one step of the file
// system's clock, at most 10 ms, would leave the same time.
const settled = time.Second

// Touched returns when files were last touched. It is zero if that was less than a second ago, or
// cannot be read.
func (p Paths) Touched() (t Touched) {
	now := time.Now()
	for dir, at := range map[string]*time.Time{p.PodDir: &t.records, p.PolicyDir: &t.reservations} {
		s, err := os.Stat(dir)
		if err != nil || now.Sub(s.ModTime()) < settled {
			return Touched{}
		}
		*at = s.ModTime()
	}
	return t
}
