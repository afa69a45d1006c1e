package volume

import "context"

// Revision is a version of a state; each store defines its meaning.
type Revision string

// Store keeps states where the owner of the volumes' disks cannot change them. Its methods may be
// called from several goroutines and nodes.
type Store interface {
	// Get returns the state of a volume, or ErrNotFound.
	Get(ctx context.Context, volume string) (State, Revision, error)
	// List returns all states in no order. Its error joins the errors of states that cannot be
	// read; the other states are returned beside it.
	List(ctx context.Context) ([]State, error)
	// Create stores the state of a new volume; ErrExists when there is one.
	Create(ctx context.Context, s State) error
	// Update replaces the state of revision r; ErrConflict when the revision is another by now.
	Update(ctx context.Context, s State, r Revision) (Revision, error)
	// Remove removes the state of revision r.
	Remove(ctx context.Context, volume string, r Revision) error
}

// Reader reads states to inform, not to decide: its answers may be stale. Every operation of a Set
// begins with a read of its Store. A Store is a Reader.
type Reader interface {
	// Get is Store.Get. The revision may be empty.
	Get(ctx context.Context, volume string) (State, Revision, error)
	// List returns states in no order, and may leave out volumes of other nodes. Its error joins
	// the errors of states that cannot be read.
	List(ctx context.Context) ([]State, error)
}
