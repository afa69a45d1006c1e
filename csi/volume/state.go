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
	// ErrNotFound means that no volume has that name.
	ErrNotFound = errors.New("no such volume")
	// ErrExists means that a volume of that name exists, with another size or request.
	ErrExists = errors.New("volume exists")
	// ErrConflict means that the state was changed in the meantime. Read it again.
	ErrConflict = errors.New("another writer changed the state")
	// ErrDeleted means that the volume was deleted. Its key is destroyed.
	ErrDeleted = errors.New("volume is deleted")
	// ErrInProgress means that another operation on the volume is under way on this node.
	ErrInProgress = errors.New("another operation on this volume is under way")
	// ErrInUse means that the volume cannot be closed or deleted, because its mapping is open.
	ErrInUse = errors.New("volume is in use")
	// ErrUnavailable means that the store of states did not answer. Try again.
	ErrUnavailable = errors.New("store of states unavailable")
	// ErrSnapshot means that a snapshot cannot be used as a volume. Copy it to a volume.
	ErrSnapshot = errors.New("it is a snapshot")
	// ErrSmaller means that a copy cannot be smaller than its source.
	ErrSmaller = errors.New("a copy is at least as large as its source")
	// ErrTooLong means that a copy was abandoned because its source was suspended for too long.
	ErrTooLong = errors.New("the source was suspended for too long")
	// ErrSuspended means that a suspended volume could not be resumed. Its users still wait.
	ErrSuspended = errors.New("it is suspended")
	// ErrState means that a state is inconsistent. It was edited, or written by another version.
	ErrState = errors.New("state of the volume is inconsistent")
)

// BusyError means that Node cannot open the volume, because the node Holder has it. Home is the
// node for which the volume was made. An empty Home means any node.
type BusyError struct{ Volume, Holder, Node, Home string }

func (e *BusyError) Error() string {
	if e.Home != "" && e.Home == e.Node {
		return fmt.Sprintf("volume %s was taken over from this node, %s, by node %s: run its pods "+
			"there, with a new PersistentVolume (docs/how-to/a-node-that-is-gone.md)", e.Volume,
			e.Node, e.Holder)
	}
	return fmt.Sprintf("volume %s is open on node %s, so node %s cannot open it; if %[2]s will "+
		"not return, take the volume over (docs/how-to/a-node-that-is-gone.md)", e.Volume,
		e.Holder, e.Node)
}

// TakenError means that an administrator declared the node From gone and moved the volume to the
// node To. From gets this error, because it is still running.
type TakenError struct{ Volume, From, To string }

func (e *TakenError) Error() string {
	return fmt.Sprintf("an administrator declared this node, %s, gone and moved volume %s to node "+
		"%s: run its pods there with a new PersistentVolume, or remove spec.takeOver before %[3]s "+
		"opens it (docs/how-to/a-node-that-is-gone.md)", e.From, e.Volume, e.To)
}

// Phase is the stage of a volume's life.
type Phase string

// The phases, in order.
const (
	New        Phase = "New"
	Formatting Phase = "Formatting"
	Ready      Phase = "Ready"
	Deleted    Phase = "Deleted"
)

// Content records whether a file system was made on the volume.
type Content string

// The contents.
const (
	// Unmade means that the volume was never used. A file system may be made on it (Set.Make).
	Unmade Content = "Unmade"
	// Made means that no file system may be made on the volume again.
	Made Content = "Made"
)

// Mode is how a volume is used, in the words of a claim's volumeMode.
type Mode string

// The modes. The mode is empty if no pod has used the volume, or if a version without this field
// staged it last.
const (
	Block      Mode = "Block"
	Filesystem Mode = "Filesystem"
)

// Request holds the parameters with which a volume was made. It never changes, so a store may keep
// it separately from the rest of the state.
type Request struct {
	// Node is the node that has the volume's backing. Empty means that any node may have it.
	Node string `json:"node,omitempty"`
	// Backend is the name of the backend: file or disk.
	Backend string `json:"backend,omitempty"`
	// Source is the volume or snapshot from which this volume was copied. It may be empty.
	Source string `json:"source,omitempty"`
	// Snapshot reports whether the volume is a snapshot, which is copied but never opened.
	Snapshot bool `json:"snapshot,omitempty"`
	// Parameters is a text of the request's other parameters. It is compared with the text of a
	// later request for the same name.
	Parameters string `json:"parameters,omitempty"`
	// Created is the time of the request in UTC, in whole seconds. Comparisons ignore it.
	Created time.Time `json:"created,omitzero"`
}

// same reports whether r and other are equal except for Created.
func (r Request) same(other Request) bool {
	r.Created, other.Created = time.Time{}, time.Time{}
	return r == other
}

// Origin is the record of the source at the time of the copy. The copy's disk has this record until
// the copy is formatted. A copy shares only the volume key with its source, so the source may be
// deleted.
type Origin struct {
	UUID     crypt.UUID `json:"uuid"`
	Sequence uint64     `json:"sequence"`
	Epoch    uint64     `json:"epoch"`
	Payload  int64      `json:"payload"`
}

// origin returns the identity and record of the source, which formatting of a copy may overwrite.
func (s State) origin() crypt.Origin {
	id := crypt.Identity{Binding: keyring.Binding{Cluster: s.Cluster, Volume: s.Request.Source},
		UUID: s.Origin.UUID}
	return crypt.Origin{Identity: id, Sequence: s.Origin.Sequence, Epoch: s.Origin.Epoch,
		Payload: s.Origin.Payload}
}

// Busy returns a BusyError for node if another node has the volume, else nil.
func (s State) Busy(node string) error {
	if s.Writer == "" || s.Writer == node {
		return nil
	}
	return &BusyError{Volume: s.Volume, Holder: s.Writer, Node: node, Home: s.Request.Node}
}

// isCopy reports whether the volume was copied from another volume.
func (s State) isCopy() bool { return s.Request.Source != "" }

// State is the trusted state of a volume. It may be copied: data that it points to never changes.
type State struct {
	// Volume is the name of the volume. Cluster is the id of its cluster.
	Volume  string `json:"volume"`
	Cluster string `json:"cluster"`
	// Request holds the parameters with which the volume was made.
	Request Request `json:"request,omitzero"`
	Phase   Phase   `json:"phase"`
	// Payload is the volume's size in bytes. PendingPayload is the size after the expansion that is
	// under way, or 0.
	Payload        int64 `json:"payload"`
	PendingPayload int64 `json:"pendingPayload,omitempty"`
	// Key is the wrapped data key, in FORMATTING and READY.
	Key keyring.Wrapped `json:"key,omitzero"`
	// UUID is the LUKS UUID, from FORMATTING on.
	UUID crypt.UUID `json:"uuid,omitzero"`
	// Device is the stable id of the device that was chosen for formatting.
	Device string `json:"device,omitempty"`
	// Origin is set for a copy (Request.Source) from FORMATTING on.
	Origin Origin `json:"origin,omitzero"`
	// Content is Unmade until Make or MarkMade changes it.
	Content Content `json:"content"`
	// Mode is the mode in which the volume was first used. Empty means unknown. A copy has the mode
	// of its source.
	Mode Mode `json:"volumeMode,omitempty"`
	// Writer is the node that has the volume. Empty means that no node has it.
	Writer string `json:"writer,omitempty"`
	// Epoch is the epoch on the disk. PendingEpoch is the epoch that is about to be written, or 0.
	Epoch        uint64 `json:"epoch,omitempty"`
	PendingEpoch uint64 `json:"pendingEpoch,omitempty"`
}

// Binding returns the cluster and volume to which the volume's key is bound.
func (s State) Binding() keyring.Binding {
	return keyring.Binding{Cluster: s.Cluster, Volume: s.Volume}
}

// Identity returns the identity that the record authenticates.
func (s State) Identity() crypt.Identity {
	return crypt.Identity{Binding: s.Binding(), UUID: s.UUID}
}

// want returns the epochs and sizes that the record on the disk may have.
func (s State) want() crypt.Want {
	return crypt.Want{Epoch: s.Epoch, PendingEpoch: s.PendingEpoch, Payload: s.Payload,
		PendingPayload: s.PendingPayload}
}

// Check returns ErrState for an inconsistent state.
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
		{s.Mode == "" || (s.Mode == Block || s.Mode == Filesystem) && s.Content == Made,
			fmt.Sprintf("volume mode %q, content %q", s.Mode, s.Content)},
		{s.Payload > 0 && s.Payload == crypt.PayloadSize(s.Payload),
			fmt.Sprintf("payload of %d bytes", s.Payload)},
		{s.PendingPayload == 0 || s.PendingPayload > s.Payload &&
			s.PendingPayload == crypt.PayloadSize(s.PendingPayload),
			fmt.Sprintf("pending payload of %d bytes", s.PendingPayload)},
		{s.hasKey() == !s.Key.IsZero(), "a key in a phase without, or no key in a phase with one"},
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

// checkOrigin reports whether Origin suits the state: only copies from FORMATTING on have an
// origin.
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
