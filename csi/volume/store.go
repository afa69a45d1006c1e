package volume

import "context"

// Revision is a version of a state. Each store defines its form.
type Revision string

// Store keeps states where the owner of the volumes' disks cannot change them. Its methods may be
// called from several goroutines and nodes.
type Store interface {
	// Get returns the state of a volume, or ErrNotFound.
	Get(ctx context.Context, volume string) (State, Revision, error)
	// List returns all states in no particular order. Its error joins the errors of states that
	// cannot be read. It returns the other states even with an error.
	List(ctx context.Context) ([]State, error)
	// Create stores the state of a new volume. It returns ErrExists if the volume has a state.
	Create(ctx context.Context, s State) error
	// Update replaces the state of revision r, and returns the new revision. It returns ErrConflict
	// if the stored revision is not r.
	Update(ctx context.Context, s State, r Revision) (Revision, error)
	// Remove removes the state of revision r, or returns ErrConflict like Update.
	Remove(ctx context.Context, volume string, r Revision) error
}

// Reader reads states that may be stale. An operation of a Set that changes a volume reads its
// Store instead. A Store is a Reader.
type Reader interface {
	// Get is like Store.Get. The revision may be empty.
	Get(ctx context.Context, volume string) (State, Revision, error)
	// List returns states in no particular order, and may leave out volumes of other nodes. Its
	// error joins the errors of states that cannot be read.
	List(ctx context.Context) ([]State, error)
}
