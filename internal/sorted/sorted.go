// Package sorted compares sorted lists, so that a caller handles only what changed between two
// versions of a long list.
package sorted

// Diff compares two sorted lists. gone are the elements of was that are not in is, and fresh those
// of is that are not in was; neither is nil. An element that compares as equal but is not the same
// is in both. ok is false if a list is not sorted or has an element twice, or if more than limit
// elements differ. Lists that share their memory are not read.
func Diff[T any](was, is []T, limit int, compare func(a, b T) int,
	same func(a, b T) bool) (gone, fresh []T, ok bool) {
	gone, fresh = []T{}, []T{}
	if len(was) == len(is) && (len(was) == 0 || &was[0] == &is[0]) {
		return gone, fresh, true
	}

	for i, j := 0, 0; i < len(was) || j < len(is); {
		if i > 0 && i < len(was) && compare(was[i-1], was[i]) >= 0 ||
			j > 0 && j < len(is) && compare(is[j-1], is[j]) >= 0 {
			return nil, nil, false
		}
		c := 0
		switch {
		case i == len(was):
			c = 1
		case j == len(is):
			c = -1
		default:
			c = compare(was[i], is[j])
		}

		if c < 0 || c == 0 && !same(was[i], is[j]) {
			gone = append(gone, was[i])
		}
		if c > 0 || c == 0 && !same(was[i], is[j]) {
			fresh = append(fresh, is[j])
		}
		if len(gone)+len(fresh) > limit {
			return nil, nil, false
		}
		if c <= 0 {
			i++
		}
		if c >= 0 {
			j++
		}
	}
	return gone, fresh, true
}
