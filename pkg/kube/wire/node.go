package wire

import (
	"cmp"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Reader reads objects, and keeps only the labels and annotations with the given keys. The zero
// value keeps none.
type Reader struct {
	Labels, Annotations []string
	// AllLabels makes the Reader keep all labels, if they have at most MaxLabels elements. 0 means
	// the constant MaxLabels.
	AllLabels bool
	MaxLabels int
	// Names shares the names in EndpointSlices. Nil shares nothing.
	Names *Names
}

// Meta holds the fields that are read of an object's metadata
// (k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta).
type Meta struct {
	Name, Namespace, UID, ResourceVersion string
	Generation                            int64
	// Created is creationTimestamp in whole seconds, UTC. It is the zero time if there is none.
	Created time.Time
	// Labels and Annotations hold the entries that the Reader keeps. Nil means that there are none.
	Labels, Annotations map[string]string
	// LabelsExcess reports whether the labels exceed the bound of the Reader. Labels is then empty.
	LabelsExcess bool
}

// ListMeta holds the fields that are read of a list's metadata.
type ListMeta struct {
	ResourceVersion, Continue string
}

// Node holds the fields that are read of a Node (k8s.io.api.core.v1.Node).
type Node struct {
	Meta
	PodCIDR   string
	PodCIDRs  []string
	Addresses []NodeAddress
	// Leaving reports whether the node is about to be deleted: it has a deletionTimestamp, or the
	// taint DeletedTaint.
	Leaving bool
	// Excess reports whether podCIDRs and addresses exceed MaxAddresses. Those beyond the bound are
	// left out.
	Excess bool
}

// DeletedTaint is the taint of a node that the cluster autoscaler is about to delete.
const DeletedTaint = "ToBeDeletedByClusterAutoscaler"

// NodeAddress is one of a Node's status.addresses.
type NodeAddress struct {
	Type, Address string
}

// Node reads a Node without its envelope.
func (r Reader) Node(message []byte) (n Node, err error) {
	addresses, deleted := budget{MaxAddresses}, time.Time{}
	err = each(message, func(f field) error {
		switch f.number {
		case 1:
			if err := readDeletion(f, &deleted); err != nil {
				return err
			}
			return r.meta(f, &n.Meta)
		case 2:
			return n.spec(f, &addresses)
		case 3:
			return n.status(f, &addresses)
		}
		return nil
	})
	n.Leaving = n.Leaving || !deleted.IsZero()
	return n, err
}

func (l *ListMeta) field(f field) error {
	switch f.number {
	case 2:
		return f.set(&l.ResourceVersion)
	case 3:
		return f.set(&l.Continue)
	}
	return nil
}

func (n *Node) spec(spec field, b *budget) error {
	return spec.within(func(f field) error {
		switch f.number {
		case 1:
			return f.set(&n.PodCIDR)
		case 5:
			return n.taint(f)
		case 7:
			tooMany, err := excess(b.appendTo(f, &n.PodCIDRs))
			n.Excess = n.Excess || tooMany
			return err
		}
		return nil
	})
}

// readDeletion sets at to the deletionTimestamp of an object's metadata, if it has one.
func readDeletion(meta field, at *time.Time) error {
	return meta.only(9, func(f field) (err error) {
		*at, err = f.time()
		return err
	})
}

func (n *Node) taint(taint field) error {
	var key []byte
	err := taint.only(1, func(f field) (err error) {
		key, err = f.message()
		return err
	})
	n.Leaving = n.Leaving || string(key) == DeletedTaint
	return err
}

func (n *Node) status(status field, b *budget) error {
	return status.only(5, func(f field) error {
		if n.Excess {
			return nil
		}
		var a NodeAddress
		err := f.within(func(f field) (err error) {
			switch f.number {
			case 1:
				a.Type, err = b.word(f)
			case 2:
				a.Address, err = b.word(f)
			}
			return err
		})
		if err == nil {
			err = b.take(1)
		}
		if n.Excess, err = excess(err); err == nil && !n.Excess {
			n.Addresses = append(n.Addresses, a)
		}
		return err
	})
}

func (r Reader) meta(meta field, m *Meta) error {
	labels := budget{cmp.Or(r.MaxLabels, MaxLabels)}

	return meta.within(func(f field) (err error) {
		switch f.number {
		case 1:
			return f.set(&m.Name)
		case 3:
			return f.set(&m.Namespace)
		case 5:
			return f.set(&m.UID)
		case 6:
			return f.set(&m.ResourceVersion)
		case 7:
			m.Generation, err = f.integer()
			return err
		case 8:
			m.Created, err = f.time()
			return err
		case 11:
			if !r.AllLabels {
				return keep(f, r.Labels, &m.Labels)
			}
			if m.LabelsExcess {
				return nil
			}
			m.LabelsExcess, err = excess(labels.label(f, &m.Labels))
			if m.LabelsExcess {
				m.Labels = nil
			}
			return err
		case 12:
			return keep(f, r.Annotations, &m.Annotations)
		}
		return nil
	})
}

// time reads a Time without its nanoseconds, as k8s.io/apimachinery does, because the JSON form has
// no nanoseconds.
func (f field) time() (time.Time, error) {
	if f.wireType == protowire.BytesType && len(f.data) == 0 {
		return time.Time{}, nil
	}
	var seconds int64
	err := f.only(1, func(f field) (err error) {
		seconds, err = f.integer()
		return err
	})
	return time.Unix(seconds, 0).UTC(), err
}

// keep reads an entry of a map of strings, and stores it if its key is in wanted. A value longer
// than maxText is stored as empty.
func keep(entry field, wanted []string, to *map[string]string) error {
	key, value, err := pair(entry)
	if err != nil {
		return err
	}
	for _, k := range wanted {
		if k == string(key) {
			if len(value) > maxText {
				value = nil
			}
			put(to, k, value)
		}
	}
	return nil
}

// label counts an entry of a map of strings, reads it and stores it.
func (b *budget) label(entry field, to *map[string]string) error {
	if len(entry.data) > maxText {
		return errExcess
	}
	if err := b.take(1 + len(entry.data)/elementText); err != nil {
		return err
	}
	key, value, err := pair(entry)
	if err == nil {
		put(to, string(key), value)
	}
	return err
}

func put(to *map[string]string, key string, value []byte) {
	if *to == nil {
		*to = map[string]string{}
	}
	(*to)[key] = string(value)
}

// pair reads an entry of a map of strings.
func pair(entry field) (key, value []byte, err error) {
	err = entry.within(func(f field) (err error) {
		switch f.number {
		case 1:
			key, err = f.message()
		case 2:
			value, err = f.message()
		}
		return err
	})
	return key, value, err
}
