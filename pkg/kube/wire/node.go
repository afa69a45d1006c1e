package wire

import "time"

// Reader says which labels and annotations are kept of each object; the zero
// value keeps none.
type Reader struct {
	Labels, Annotations []string
	// AllLabels keeps all labels.
	AllLabels bool
}

// Meta is what is read of an object's metadata (k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta).
type Meta struct {
	Name, Namespace, UID, ResourceVersion string
	Generation                            int64
	// Created is creationTimestamp in whole seconds, UTC; the zero time when there is none.
	Created time.Time
	// Labels and Annotations are those that the Reader keeps; nil is none.
	Labels, Annotations map[string]string
}

// ListMeta is what is read of a list's metadata.
type ListMeta struct {
	ResourceVersion, Continue string
}

// Node is what is read of a Node (k8s.io.api.core.v1.Node).
type Node struct {
	Meta
	PodCIDR   string
	PodCIDRs  []string
	Addresses []NodeAddress
}

// NodeAddress is one of a Node's status.addresses.
type NodeAddress struct {
	Type, Address string
}

// Node reads a Node without its envelope.
func (r Reader) Node(message []byte) (n Node, err error) {
	err = each(message, func(f field) error {
		switch f.number {
		case 1:
			return r.meta(f, &n.Meta)
		case 2:
			return n.spec(f)
		case 3:
			return n.status(f)
		}
		return nil
	})
	return n, err
}

// NodeList reads a NodeList without its envelope and calls visit for each Node. An
// error of visit ends it and is returned.
func (r Reader) NodeList(message []byte, visit func(Node) error) (list ListMeta, err error) {
	return List(message, func(item []byte) error {
		n, err := r.Node(item)
		if err != nil {
			return err
		}
		return visit(n)
	})
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

func (n *Node) spec(spec field) error {
	return spec.within(func(f field) error {
		switch f.number {
		case 1:
			return f.set(&n.PodCIDR)
		case 7:
			text, err := f.text()
			n.PodCIDRs = append(n.PodCIDRs, text)
			return err
		}
		return nil
	})
}

func (n *Node) status(status field) error {
	return status.within(func(f field) error {
		if f.number != 5 {
			return nil
		}
		var a NodeAddress
		err := f.within(func(f field) error {
			switch f.number {
			case 1:
				return f.set(&a.Type)
			case 2:
				return f.set(&a.Address)
			}
			return nil
		})
		n.Addresses = append(n.Addresses, a)
		return err
	})
}

func (r Reader) meta(meta field, m *Meta) error {
	return meta.within(func(f field) error {
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
			generation, err := f.integer()
			m.Generation = generation
			return err
		case 8:
			return m.created(f)
		case 11:
			if r.AllLabels {
				return keepAll(f, &m.Labels)
			}
			return keep(f, r.Labels, &m.Labels)
		case 12:
			return keep(f, r.Annotations, &m.Annotations)
		}
		return nil
	})
}

// created reads a Time. Its nanoseconds are not read, as in k8s.io/apimachinery,
// since the JSON form has none.
func (m *Meta) created(f field) error {
	m.Created = time.Time{}
	if f.wireType == typeBytes && len(f.data) == 0 {
		return nil
	}
	var seconds int64
	err := f.within(func(f field) (err error) {
		if f.number == 1 {
			seconds, err = f.integer()
		}
		return err
	})
	m.Created = time.Unix(seconds, 0).UTC()
	return err
}

// keep reads an entry of a map of strings and stores it if its key is wanted.
func keep(entry field, wanted []string, to *map[string]string) error {
	key, value, err := pair(entry)
	if err != nil {
		return err
	}
	for _, k := range wanted {
		if k == string(key) {
			put(to, k, value)
		}
	}
	return nil
}

// keepAll reads an entry of a map of strings and stores it.
func keepAll(entry field, to *map[string]string) error {
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
