package source_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/source"
)

// run starts s. stop cancels its context and checks that Run returned the context's error.
func run(t *testing.T, s source.Source) (states <-chan cluster.State, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ch, done := make(chan cluster.State), make(chan error, 1)
	go func() {
		done <- s.Run(ctx, func(s cluster.State) {
			select {
			case ch <- s:
			case <-ctx.Done():
			}
		})
	}()
	return ch, func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	}
}

func next(t *testing.T, states <-chan cluster.State) cluster.State {
	t.Helper()
	select {
	case s := <-states:
		return s
	case <-time.After(10 * time.Second):
		t.Fatal("no state came")
		return cluster.State{}
	}
}

// memoryDir is a directory on tmpfs, removed with the test.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "kubeveil-source-")
	errtest.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
