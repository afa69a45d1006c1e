package filestore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

const id, cluster = "pvc-1", "c0ffee00-0000-4000-8000-000000000001"

func equal(a, b volume.State) bool { return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b) }

func TestFolder(t *testing.T) {
	f := &Folder{Dir: t.TempDir()}
	ctx := t.Context()
	st := volume.State{Volume: id, Cluster: cluster, Phase: volume.New, Payload: 4096,
		Content: volume.Unmade}
	errtest.Must(t, f.Create(ctx, st))
	if err := f.Create(ctx, st); !errors.Is(err, volume.ErrExists) {
		t.Errorf("made twice: %v", err)
	}
	got, r, err := f.Get(ctx, id)
	if err != nil || !equal(got, st) {
		t.Fatalf("got %+v, %v", got, err)
	}

	st.Content = volume.Made
	errtest.Must(t, errtest.Of(f.Update(ctx, st, r)))
	if _, err := f.Update(ctx, st, r); !errors.Is(err, volume.ErrConflict) {
		t.Errorf("updated an old revision: %v", err)
	}
	if err := f.Remove(ctx, id, r); !errors.Is(err, volume.ErrConflict) {
		t.Errorf("removed an old revision: %v", err)
	}
	if all, err := f.List(ctx); err != nil || len(all) != 1 || !equal(all[0], st) {
		t.Errorf("list %v, %v", all, err)
	}

	st.Payload = 1
	if err := f.Create(ctx, st); !errors.Is(err, volume.ErrState) {
		t.Errorf("stored an invalid state: %v", err)
	}

	for _, name := range []string{"", "../x", ".x"} {
		if _, _, err := f.Get(ctx, name); err == nil || errors.Is(err, volume.ErrNotFound) {
			t.Errorf("%q: %v", name, err)
		}
	}

	filetest.Write(t, filepath.Join(f.Dir, id+".json"),
		[]byte(`{"revision":1,"state":{"later":1}}`), 0o600)
	if _, _, err := f.Get(ctx, id); !errors.Is(err, volume.ErrState) {
		t.Errorf("a field of another version: %v", err)
	}
	st = volume.State{Volume: "pvc-2", Cluster: cluster, Phase: volume.New, Payload: 4096,
		Content: volume.Unmade}
	errtest.Must(t, f.Create(ctx, st))
	if all, err := f.List(ctx); !errors.Is(err, volume.ErrState) || len(all) != 1 ||
		!equal(all[0], st) {
		t.Errorf("list with a refused state: %v, %v", all, err)
	}
}

// After a process has died while it wrote a state, the next write removes all parts of wrapped keys
// that the process left.
func TestFolderTakesWhatWasLeft(t *testing.T) {
	f := &Folder{Dir: t.TempDir()}
	left := filepath.Join(f.Dir, ".pvc-1.tmp-1")
	leave := func() {
		t.Helper()
		filetest.Write(t, left, []byte("a wrapped key"), 0o600)
	}
	st := volume.State{Volume: id, Cluster: cluster, Phase: volume.New, Payload: 4096,
		Content: volume.Unmade}

	var r volume.Revision
	for _, c := range []struct {
		what string
		do   func() error
	}{
		{"create", func() error { return f.Create(t.Context(), st) }},
		{"update", func() (err error) { r, err = f.Update(t.Context(), st, "1"); return err }},
		{"remove", func() error { return f.Remove(t.Context(), id, r) }},
	} {
		leave()
		if err := c.do(); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the file still exists: %v", c.what, err)
		}
	}

	// If the folder does not exist, the store returns an error, not an empty list of states.
	f.Dir = filepath.Join(f.Dir, "gone")
	if _, err := f.List(t.Context()); err == nil {
		t.Error("listed a folder that cannot be read")
	}
}

func FuzzStored(f *testing.F) {
	f.Add(
		[]byte(
			`{"revision":1,"state":{"volume":"pvc-1","cluster":"c","phase":"New","payload":4096,"content":"Unmade"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parseStored(text, id)
		if err != nil && !errors.Is(err, volume.ErrState) {
			t.Errorf("untyped: %v", err)
		}
		if err == nil && s.State.Check() != nil {
			t.Error("accepted an inconsistent state")
		}
	})
}
