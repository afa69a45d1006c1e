package volume

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// These mappings may exist after a restart. All are replaced, and the bad mapping no longer has the
// disk even while it is held open.
func TestZombieMappingsAreReplaced(t *testing.T) {
	for name, spoil := range map[string]func(n *node, mapping string){
		"dead disk": func(n *node, m string) { n.engine.Kill(m) },
		"another uuid": func(n *node, m string) {
			n.engine.Edit(m, func(m *dmcrypt.Mapping) { m.UUID = "CRYPT-LUKS2-x" })
		},
		"another size": func(n *node, m string) {
			n.engine.Edit(m, func(m *dmcrypt.Mapping) { m.Targets[0].Length -= 4096 })
		},
		"no table": func(n *node, m string) {
			n.engine.Edit(m, func(m *dmcrypt.Mapping) { m.Targets = nil })
		},
		"another device": func(n *node, _ string) { n.numbers[id]++ },
		"held open": func(n *node, m string) {
			n.engine.Kill(m)
			n.engine.Edit(m, func(m *dmcrypt.Mapping) { m.Open = 1 })
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := opened(t)
			found := n.engine.Live()[0]
			spoil(n, found)
			o, err := n.process(0).Open(t.Context(), id, OpenOptions{})
			if err != nil || o.Adopted || o.Mapping.Name == found {
				t.Fatalf("%+v, %v", o, err)
			}
			if live := n.engine.Live(); len(live) != 1 || live[0] != o.Mapping.Name {
				t.Errorf("mappings %v", live)
			}
			if c, err := n.process(0).Close(t.Context(), id, nil); err != nil || !c.Sealed {
				t.Errorf("then close: %+v, %v", c, err)
			}
		})
	}
}

// A wrong mapping may nevertheless be mounted, so it is kept if it cannot be replaced.
func TestZombiesThatCannotBeReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(n *node, s *Set)
		want  error
	}{
		"key service away": {func(_ *node, s *Set) { s.Keys = awayProvider{} },
			keyring.ErrUnavailable},
		"another disk": {func(n *node, _ *Set) { n.disks[id].Flip(4200, 1) }, crypt.Tampered},
		// The backup has the same epoch, because it is from before an expansion.
		"state from a backup": {func(n *node, _ *Set) {
			store := n.store.(*memoryStore)
			old := store.states[id]
			if _, err := n.process(0).Expand(n.t.Context(), id, 2*size, OpenOptions{}); err != nil {
				n.t.Fatal(err)
			}
			store.states[id] = old
		}, crypt.NewerThanState},
	} {
		t.Run(name, func(t *testing.T) {
			n := opened(t)
			mapping := n.engine.Live()[0]
			n.engine.Edit(mapping, func(m *dmcrypt.Mapping) { m.Open = 1 })
			s := n.process(0)
			c.spoil(n, s)
			hook := n.engine.Hook
			n.engine.Hook = func(op, name string) error {
				if op == "probe" {
					return unix.EIO
				}
				return hook(op, name)
			}

			before := n.state()
			if _, err := s.Open(t.Context(), id, OpenOptions{}); !errors.Is(err, c.want) {
				t.Errorf("%v; want %v", err, c.want)
			}
			if live := n.engine.Live(); len(live) != 1 || live[0] != mapping ||
				!equal(n.state(), before) {
				t.Errorf("mappings %v, state %+v", live, n.state())
			}
		})
	}
}
