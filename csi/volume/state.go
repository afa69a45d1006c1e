package volume

import (
	"errors"
	"fmt"
	"time"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// Errors of volumes.
var (
	// ErrNotFound matches when there is no volume of that name.
	ErrNotFound = errors.New("no such volume")
	// ErrExists matches when there is one already, of another size or request.
	ErrExists = errors.New("volume exists")
	// ErrConflict matches when somebody else changed the state meanwhile: read it again.
	ErrConflict = errors.New("state was changed by somebody else")
	// ErrDeleted matches for a volume that was deleted; its key is gone.
	ErrDeleted = errors.New("volume is deleted")
	// ErrInProgress matches while another operation on the volume is under way on this node.
	ErrInProgress = errors.New("another operation on this volume is under way")
	// ErrInUse matches when the volume cannot be closed or deleted because something has it open.
	ErrInUse = errors.New("volume is in use")
	// ErrUnavailable matches when the store of states did not answer: try again.
	ErrUnavailable = errors.New("store of states unavailable")
	// ErrSnapshot matches when a snapshot was to be used as a volume: make a volume from it.
	ErrSnapshot = errors.New("it is a snapshot")
	// ErrSmaller matches when a copy was to be smaller than its source.
	ErrSmaller = errors.New("a copy is at least as large as its source")
	// ErrTooLong matches when a copy was given up because its source stood still for too long.
	ErrTooLong = errors.New("the source stood still for too long")
	// ErrStill matches when a volume could not be let go on after it was brought to a standstill:
	// what uses it waits.
	ErrStill = errors.New("it stands still")
	// ErrState matches a state that no operation leaves behind: it was edited, or written by
	// another version.
	ErrState = errors.New("state of the volume does not hang together")
)

// BusyError is a volume that Holder has, and so Node has not. Home is the node that it was made
// for; empty when it was for any.
type BusyError struct{ Volume, Holder, Node, Home string }

func (e *BusyError) Error() string {
	if e.Home != "" && e.Home == e.Node {
		return fmt.Sprintf("volume %s was taken over from this node, %s, by node %s, and its pods "+
			"belong there; its PersistentVolume goes on naming this node, "+
			"and cannot be changed: make another one: docs/how-to/a-node-that-is-gone.md", e.Volume,
			e.Node, e.Holder)
	}
	return fmt.Sprintf("volume %s is open on node %s, so not on %s; when that node is gone for "+
		"good, a person lets this one take the volume over: "+
		"docs/how-to/a-node-that-is-gone.md", e.Volume, e.Holder, e.Node)
}

// TakenError is a volume that a person gives from the node From, which is said to be gone, to the
// node To. It is for From, which is there after all.
type TakenError struct{ Volume, From, To string }

func (e *TakenError) Error() string {
	return fmt.Sprintf("volume %s is given from this node, %s, which is said to be gone for good, "+
		"to node %s, and its pods belong there; its PersistentVolume goes on naming this node, "+
		"and cannot be changed: make another one, or remove spec.takeOver while %s has not opened "+
		"it: docs/how-to/a-node-that-is-gone.md", e.Volume, e.From, e.To, e.To)
}

// Phase is how far a volume has come.
type Phase string

// The phases, in order.
const (
	New        Phase = "New"
	Formatting Phase = "Formatting"
	Ready      Phase = "Ready"
	Deleted    Phase = "Deleted"
)

// Content says whether a file system was made on the volume.
type Content string

// What content there is.
const (
	// Unmade: nobody has used the volume, so a file system may be made on it (Set.Make).
	Unmade Content = "Unmade"
	// Made: never again.
	Made Content = "Made"
)

// Request is what was asked for when a volume was made. It stays as it is for the volume's life: a
// store may keep it apart from the rest of the state.
type Request struct {
	// Node is the node that has the volume's backing; empty when any may.
	Node string `json:"node,omitempty"`
	// Backend is the name of the backend: file or disk.
	Backend string `json:"backend,omitempty"`
	// Source is the volume or snapshot of which this one began as a copy.
	Source string `json:"source,omitempty"`
	// Snapshot reports whether it is one: nobody opens it, it is only copied.
	Snapshot bool `json:"snapshot,omitempty"`
	// Parameters is a fingerprint of what else was asked for, by which a second request of the same
	// name is compared.
	Parameters string `json:"parameters,omitempty"`
	// Created is when it was asked for, UTC, whole seconds. Two requests are compared without it.
	Created time.Time `json:"created,omitzero"`
}

// same reports whether r and other ask for the same.
func (r Request) same(other Request) bool {
	r.Created, other.Created = time.Time{}, time.Time{}
	return r == other
}

// Origin is what the disk of a copy's source said when it was copied, and so what the copy's own
// disk says before it is formatted. The volume key is the same; everything else is the copy's own,
// so the source may go.
type Origin struct {
	UUID     crypt.UUID `json:"uuid"`
	Sequence uint64     `json:"sequence"`
	Epoch    uint64     `json:"epoch"`
	Payload  int64      `json:"payload"`
}

// origin is what may be overwritten on the disk of a copy in FORMATTING.
func (s State) origin() crypt.Origin {
	id := crypt.Identity{Binding: keyring.Binding{Cluster: s.Cluster, Volume: s.Request.Source},
		UUID: s.Origin.UUID}
	return crypt.Origin{Identity: id, Sequence: s.Origin.Sequence, Epoch: s.Origin.Epoch,
		Payload: s.Origin.Payload}
}

// Busy is the error for node where another one has the volume; nil where none has.
func (s State) Busy(node string) error {
	if s.Writer == "" || s.Writer == node {
		return nil
	}
	return &BusyError{Volume: s.Volume, Holder: s.Writer, Node: node, Home: s.Request.Node}
}

// isCopy reports whether the volume is made from another.
func (s State) isCopy() bool { return s.Request.Source != "" }

// State is what is trusted about a volume. It is a value; what it points to is not changed.
type State struct {
	// Volume and Cluster are its names.
	Volume  string `json:"volume"`
	Cluster string `json:"cluster"`
	// Request is what was asked for.
	Request Request `json:"request,omitzero"`
	Phase   Phase   `json:"phase"`
	// Payload is the size, bytes; PendingPayload, unless 0, the size to which it is being expanded.
	Payload        int64 `json:"payload"`
	PendingPayload int64 `json:"pendingPayload,omitempty"`
	// Key is the wrapped data key, in FORMATTING and READY.
	Key keyring.Wrapped `json:"key,omitzero"`
	// UUID is the LUKS UUID, from FORMATTING on.
	UUID crypt.UUID `json:"uuid,omitzero"`
	// Device is the stable id of the device that was chosen to be formatted.
	Device string `json:"device,omitempty"`
	// Origin is set for a copy (Request.Source) from FORMATTING on.
	Origin Origin `json:"origin,omitzero"`
	// Content is Unmade until Make or MarkMade.
	Content Content `json:"content"`
	// Writer is the node that has the volume; empty when none has.
	Writer string `json:"writer,omitempty"`
	// Epoch is what the disk says; PendingEpoch, unless 0, is what it is about to say.
	Epoch        uint64 `json:"epoch,omitempty"`
	PendingEpoch uint64 `json:"pendingEpoch,omitempty"`
}

// Binding is what the volume's key is wrapped for.
func (s State) Binding() keyring.Binding {
	return keyring.Binding{Cluster: s.Cluster, Volume: s.Volume}
}

// Identity is which volume.
func (s State) Identity() crypt.Identity {
	return crypt.Identity{Binding: s.Binding(), UUID: s.UUID}
}

// want is what the record on the disk must say.
func (s State) want() crypt.Want {
	return crypt.Want{Epoch: s.Epoch, PendingEpoch: s.PendingEpoch, Payload: s.Payload,
		PendingPayload: s.PendingPayload}
}

// Check says what does not hang together (ErrState), or nil.
func (s State) Check() error {
	for _, c := range []struct {
		ok   bool
		what string
	}{
		{s.Volume != "" && s.Cluster != "" && max(len(s.Volume), len(s.Cluster)) <= crypt.MaxName,
			fmt.Sprintf("names have 1 to %d bytes", crypt.MaxName)},
		{s.Phase == New || s.Phase == Formatting || s.Phase == Ready ||
			s.Phase == Deleted, fmt.Sprintf("phase %q", s.Phase)},
		{s.Content == Unmade || s.Content == Made, fmt.Sprintf("content %q", s.Content)},
		{s.Payload > 0 && s.Payload == crypt.PayloadSize(s.Payload),
			fmt.Sprintf("payload of %d bytes", s.Payload)},
		{s.PendingPayload == 0 || s.PendingPayload > s.Payload &&
			s.PendingPayload == crypt.PayloadSize(s.PendingPayload),
			fmt.Sprintf("pending payload of %d bytes", s.PendingPayload)},
		{s.hasKey() == !s.Key.IsZero(), "a key in a phase that has none, or none in one that has"},
		{!s.hasKey() || s.UUID != crypt.UUID{}, "no uuid"},
		{s.Phase != Formatting || s.Writer != "" && s.Device != "",
			"formatting without node or device"},
		{(s.Phase == Ready) == (s.Epoch > 0) ||
			s.Phase == Deleted, fmt.Sprintf("epoch %d in phase %s", s.Epoch, s.Phase)},
		{s.PendingEpoch == 0 || s.Phase != New && s.PendingEpoch == s.Epoch+1,
			fmt.Sprintf("pending epoch %d after %d", s.PendingEpoch, s.Epoch)},
		{!s.Request.Snapshot || s.isCopy(), "a snapshot of nothing"},
		{s.checkOrigin(), fmt.Sprintf("phase %s, source %q and origin %+v", s.Phase,
			s.Request.Source, s.Origin)},
	} {
		if !c.ok {
			return fmt.Errorf("volume %s: %w: %s", s.Volume, ErrState, c.what)
		}
	}

	return nil
}

// checkOrigin reports whether a copy knows its origin once it needs it, and nothing else has one.
func (s State) checkOrigin() bool {
	if !s.isCopy() || !s.hasKey() && s.Phase != Deleted {
		return s.Origin == Origin{} && s.Request.Source != s.Volume
	}
	o := s.Origin
	known := o.UUID != crypt.UUID{} && o.UUID != s.UUID && o.Epoch > 0 && o.Sequence > 0 &&
		o.Payload > 0
	return known || s.Phase == Deleted
}

// Destroyed returns s in phase DELETED, without its wrapped key.
func (s State) Destroyed() State {
	s.Phase, s.Key, s.Writer = Deleted, keyring.Wrapped{}, ""
	return s
}

func (s State) hasKey() bool { return s.Phase == Formatting || s.Phase == Ready }
