// Package dmcrypttest has a fake Engine that keeps mappings in memory. It encrypts nothing. Only
// tests import it.
package dmcrypttest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// Engine is the fake. Use New. Its methods may be called from several goroutines.
type Engine struct {
	mu       sync.Mutex
	mappings map[string]*mapping
	created  int

	// Hook, unless nil, is called before each operation. op is "answer", "create", "lookup",
	// "list", "probe", "load" and then "resize" (both in Resize), "suspend", "resume", "fence" or
	// "remove". name is the mapping or the prefix. The operation returns the error of Hook.
	Hook func(op, name string) error
}

type mapping struct {
	dmcrypt.Mapping
	table dmcrypt.MappingSpec
	key   []byte
	dead  bool
}

// New returns an Engine without mappings.
func New() *Engine { return &Engine{mappings: map[string]*mapping{}} }

// Clone returns an engine with the same mappings and no hook.
func (e *Engine) Clone() *Engine {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := New()
	c.created = e.created
	for name, m := range e.mappings {
		same := *m
		same.Targets, same.key = slices.Clone(m.Targets), slices.Clone(m.key)
		c.mappings[name] = &same
	}
	return c
}

// begin locks the engine, calls the hook, and returns the mapping or nil, and the function that
// unlocks.
func (e *Engine) begin(op, name string) (*mapping, func(), error) {
	e.mu.Lock()
	if e.Hook != nil {
		if err := e.Hook(op, name); err != nil {
			e.mu.Unlock()
			return nil, nil, err
		}
	}
	return e.mappings[name], e.mu.Unlock, nil
}

// need calls begin, and returns dmcrypt.ErrNoMapping if the mapping does not exist.
func (e *Engine) need(op, name string) (*mapping, func(), error) {
	m, end, err := e.begin(op, name)
	if err == nil && m == nil {
		end()
		err = fmt.Errorf("mapping %s: %w", name, dmcrypt.ErrNoMapping)
	}
	return m, end, err
}

// Answer implements dmcrypt.Engine.
func (e *Engine) Answer(context.Context) error {
	_, end, err := e.begin("answer", "")
	if err == nil {
		end()
	}
	return err
}

// Create implements dmcrypt.Engine.
func (e *Engine) Create(_ context.Context, t dmcrypt.MappingSpec,
	key *keyring.Secret) (dmcrypt.Mapping, error) {
	m, end, err := e.begin("create", t.Name)
	if err != nil {
		return dmcrypt.Mapping{}, err
	}
	defer end()
	if m != nil {
		return dmcrypt.Mapping{}, fmt.Errorf("mapping %s: %w", t.Name, dmcrypt.ErrExists)
	}
	e.created++
	m = &mapping{table: t, key: slices.Clone(key.Bytes())}
	m.Mapping = t.Mapping()
	m.Number = unix.Mkdev(253, uint32(e.created))
	m.Path = fmt.Sprintf("/dev/dm-%d", e.created)
	e.mappings[t.Name] = m
	return m.Mapping, nil
}

// Lookup implements dmcrypt.Engine.
func (e *Engine) Lookup(_ context.Context, name string) (dmcrypt.Mapping, error) {
	m, end, err := e.need("lookup", name)
	if err != nil {
		return dmcrypt.Mapping{}, err
	}
	defer end()
	return m.Mapping, nil
}

// List implements dmcrypt.Engine.
func (e *Engine) List(_ context.Context, prefix string) ([]string, error) {
	_, end, err := e.begin("list", prefix)
	if err != nil {
		return nil, err
	}
	defer end()
	var names []string
	for name := range e.mappings {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Probe implements dmcrypt.Engine.
func (e *Engine) Probe(_ context.Context, name string) error {
	m, end, err := e.need("probe", name)
	if err != nil {
		return err
	}
	defer end()
	if m.dead || m.fenced() {
		return fmt.Errorf("probe %s: %w", name, unix.EIO)
	}
	return nil
}

// Resize implements dmcrypt.Engine in two steps. It loads t as the inactive table, then makes it
// the live table.
func (e *Engine) Resize(_ context.Context, t dmcrypt.MappingSpec, key *keyring.Secret) error {
	m, end, err := e.need("load", t.Name)
	if err != nil {
		return err
	}
	same := slices.Equal(m.key, key.Bytes())
	m.Inactive = m.Inactive || same
	end()
	if !same {
		return fmt.Errorf("resize %s: another key", t.Name)
	}
	if m, end, err = e.need("resize", t.Name); err != nil {
		return err
	}
	defer end()
	m.table, m.Targets, m.Inactive, m.Suspended = t, t.Mapping().Targets, false, false
	return nil
}

// Suspend implements dmcrypt.Engine.
func (e *Engine) Suspend(_ context.Context, name string, suspended bool) error {
	op := "resume"
	if suspended {
		op = "suspend"
	}
	m, end, err := e.need(op, name)
	if err != nil {
		return err
	}
	defer end()
	m.Suspended = suspended
	m.Inactive = m.Inactive && suspended
	return nil
}

// Fence implements dmcrypt.Engine.
func (e *Engine) Fence(_ context.Context, name string) error {
	m, end, err := e.need("fence", name)
	if err != nil {
		return err
	}
	defer end()
	m.key, m.Suspended, m.Inactive = nil, false, false
	m.Targets = []dmcrypt.Target{{Length: m.table.Payload, Type: "error"}}
	return nil
}

// Remove implements dmcrypt.Engine.
func (e *Engine) Remove(_ context.Context, name string, deferred bool) error {
	m, end, err := e.begin("remove", name)
	if err != nil {
		return err
	}
	defer end()
	if m != nil && m.Open > 0 {
		if deferred {
			return nil
		}
		return fmt.Errorf("mapping %s: %w", name, dmcrypt.ErrInUse)
	}
	delete(e.mappings, name)
	return nil
}

func (m *mapping) fenced() bool { return len(m.Targets) == 1 && m.Targets[0].Type == "error" }

// Edit calls edit with the mapping of that name, if it exists. It simulates changes by other
// programs.
func (e *Engine) Edit(name string, edit func(m *dmcrypt.Mapping)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if m := e.mappings[name]; m != nil {
		edit(&m.Mapping)
	}
}

// Kill makes reads of the mapping fail, as if its disk had died.
func (e *Engine) Kill(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mappings[name].dead = true
}

// Live returns the names of mappings that are not fenced and whose disk was not killed. Suspended
// mappings count as live.
func (e *Engine) Live() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var names []string
	for name, m := range e.mappings {
		if !m.dead && !m.fenced() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Reboot removes all mappings, as a reboot does.
func (e *Engine) Reboot() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.mappings)
}
