package volume

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

// failing makes an operation of the engine fail the given number of times, as it would for lack of
// memory, and then succeed. asked is the number of calls.
func (n *node) failing(op string, times int) (asked *int) {
	asked = new(int)
	hook := n.engine.Hook
	n.engine.Hook = func(what, name string) error {
		if what != op {
			return hook(what, name)
		}
		if *asked++; *asked <= times {
			return unix.ENOMEM
		}
		return hook(what, name)
	}
	return asked
}

// If resuming a source fails at first, it is repeated, and the copy is complete.
func TestSourceGoesOnAgain(t *testing.T) {
	for times := 1; times < attempts; times++ {
		n := opened(t)
		n.failing("resume", times)
		if st := copyVolume(t, n.process(0), copyID, id, CopyOptions{}); st.Phase != Ready ||
			len(n.suspended()) != 0 {
			t.Errorf("failed %d times: %+v, suspended %v", times, st, n.suspended())
		}
		n.intact()
	}
}

// If all attempts to resume a source fail, the source is reported as suspended, and nothing of its
// copy remains. This process or the next resumes the source on request.
func TestSourceThatStandsStill(t *testing.T) {
	for name, goOn := range map[string]func(n *node, s *Set) error{
		"this process": func(n *node, s *Set) error { return s.ResumeVolume(n.t.Context(), id) },
		"the next":     func(n *node, _ *Set) error { return n.process(0).Resume(n.t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			n := opened(t)
			s := n.process(0)
			asked := n.failing("resume", attempts+1)
			if _, err := s.Copy(t.Context(), copyID, id, CopyOptions{}); !errors.Is(err,
				ErrSuspended) || !errors.Is(err, unix.ENOMEM) || *asked != attempts {
				t.Errorf("%v after %d attempts, want %d", err, *asked, attempts)
			}

			n.nothingOf(copyID)
			if len(n.suspended()) != 1 {
				t.Errorf("suspended %v", n.suspended())
			}
			if err := goOn(n, s); !errors.Is(err, unix.ENOMEM) || len(n.suspended()) != 1 {
				t.Errorf("it fails once more: %v, suspended %v", err, n.suspended())
			}

			for range 2 {
				if err := goOn(n, s); err != nil || len(n.suspended()) != 0 {
					t.Errorf("%v, suspended %v", err, n.suspended())
				}
			}

			copyVolume(t, n.process(0), copyID, id, CopyOptions{})
		})
	}

	n := opened(t)
	closeVolume(t, n)
	for _, v := range []string{id, "none"} {
		if err := n.process(0).ResumeVolume(t.Context(), v); err != nil {
			t.Errorf("%s, which is not open: %v", v, err)
		}
	}
}

// The attempts take the configured time. Once the process must end, they take no time.
func TestAttemptsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := opened(t)
		s := n.process(0)
		s.pauses = resumePauses
		n.failing("resume", 100)
		var want time.Duration
		for _, pause := range resumePauses {
			want += pause
		}
		began := time.Now()
		if _, err := s.Copy(t.Context(), copyID, id, CopyOptions{}); !errors.Is(err,
			ErrSuspended) ||
			time.Since(began) != want {
			t.Errorf("%v after %v, want %v", err, time.Since(began), want)
		}
		ctx, cancel := context.WithCancel(t.Context())
		s.Backend = told{stepBackend{n}, cancel}
		began = time.Now()
		if _, err := s.Copy(ctx, copyID, id, CopyOptions{}); !errors.Is(err, ErrSuspended) ||
			time.Since(began) != 0 {
			t.Errorf("while the process ends: %v after %v", err, time.Since(began))
		}
	})
}

// told is a backend. While it copies, the process gets the signal to end.
type told struct {
	stepBackend
	end context.CancelFunc
}

func (b told) Copy(ctx context.Context, _, _ string, _ int64) error {
	b.end()
	return ctx.Err()
}

// A copy that is stuck does not keep its source suspended, even if the first attempt to resume the
// source fails.
func TestSourceOfAStuckCopyGoesOnAgain(t *testing.T) {
	n := opened(t)
	n.failing("resume", 2)
	s := n.process(0)
	s.Backend = stuck{stepBackend{n}}
	s.limit = time.Millisecond
	if _, err := s.Copy(t.Context(), copyID, id, CopyOptions{}); !errors.Is(err,
		ErrTooLong) || errors.Is(err, ErrSuspended) {
		t.Errorf("%v", err)
	}
	if n.nothingOf(copyID); len(n.suspended()) != 0 {
		t.Errorf("suspended %v", n.suspended())
	}
}

// halfway is an engine whose operations fail after they have suspended the mapping.
type halfway struct{ dmcrypt.Engine }

func (h halfway) Suspend(ctx context.Context, name string, suspended bool) error {
	err := h.Engine.Suspend(ctx, name, suspended)
	if suspended {
		err = errors.Join(err, unix.EIO)
	}
	return err
}

// An operation that fails after it has suspended a volume resumes the volume, even if that takes
// two attempts.
func TestHalfwayToAStandstill(t *testing.T) {
	n := opened(t)
	n.failing("resume", 1)
	s := n.process(0)
	s.Engine = halfway{s.Engine}
	if _, err := s.Copy(t.Context(), copyID, id, CopyOptions{}); !errors.Is(err, unix.EIO) ||
		errors.Is(err, ErrSuspended) || len(n.suspended()) != 0 {
		t.Errorf("copy: %v, suspended %v", err, n.suspended())
	}
	n.nothingOf(copyID)

	n = opened(t)
	n.failing("resume", 2)
	s = n.process(0)
	s.Engine = resizing{s.Engine}
	if _, err := s.Expand(t.Context(), id, 2*size, OpenOptions{}); !errors.Is(err, unix.EIO) ||
		len(n.suspended()) != 0 {
		t.Errorf("expand: %v, suspended %v", err, n.suspended())
	}
}

// resizing is an engine whose Resize leaves the mapping suspended after an attempt to resume it.
type resizing struct{ dmcrypt.Engine }

func (r resizing) Resize(ctx context.Context, t dmcrypt.MappingSpec, _ *keyring.Secret) error {
	return errors.Join(r.Engine.Suspend(ctx, t.Name, true), unix.EIO,
		r.Engine.Suspend(ctx, t.Name, false))
}

// rebooting is a backend. While it copies, all mappings disappear.
type rebooting struct{ stepBackend }

func (b rebooting) Copy(ctx context.Context, dst, src string, size int64) error {
	b.engine.Reboot()
	return b.stepBackend.Copy(ctx, dst, src, size)
}

// A mapping that no longer exists does not count as suspended.
func TestCopyOfAMissingSourceIsNotRetried(t *testing.T) {
	n := opened(t)
	asked := n.failing("resume", 0)
	s := n.process(0)
	s.Backend = rebooting{stepBackend{n}}
	if _, err := s.Copy(t.Context(), copyID, id, CopyOptions{}); !errors.Is(err,
		dmcrypt.ErrNoMapping) || errors.Is(err, ErrSuspended) || *asked != 1 {
		t.Errorf("%v after %d attempts", err, *asked)
	}
	n.nothingOf(copyID)
}

// racing is a backend in which another process makes a backing at the place of a copy.
type racing struct{ stepBackend }

func (b racing) Copy(ctx context.Context, dst, src string, size int64) error {
	return errors.Join(b.stepBackend.Copy(ctx, dst, src, size), backend.ErrExists)
}

// A backing that a failed copy did not make is not removed with the copy.
func TestFailedCopyKeepsForeignBackings(t *testing.T) {
	n := opened(t)
	s := n.process(0)
	s.Backend = racing{stepBackend{n}}
	if _, err := s.Copy(t.Context(), copyID, id, CopyOptions{}); !errors.Is(err,
		backend.ErrExists) {
		t.Errorf("%v", err)
	}
	if n.disks[copyID] == nil {
		t.Error("another process's backing was deleted")
	}
}

// Disks that hang delay others only for a while. Their slots are released once only.
func TestDisksThatHangAreOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := opened(t)
		closeVolume(t, n)
		s := n.process(0)

		var hung []func()
		for range readers {
			done, err := (&op{Set: s}).takeReadSlot(t.Context())
			errtest.Must(t, err)
			hung = append(hung, done)
		}

		began := time.Now()
		if _, err := s.Open(t.Context(), id, OpenOptions{}); err != nil ||
			time.Since(began) != readSlotPatience {
			t.Errorf("%v after %v, want %v", err, time.Since(began), readSlotPatience)
		}

		for range readers {
			s.readSlots <- struct{}{}
		}

		for _, done := range hung {
			done()
		}

		if len(s.readSlots) != readers {
			t.Errorf("%d slots are taken, want %d", len(s.readSlots), readers)
		}
	})
}

// slow is an engine that takes long to flush a file system before it suspends the mapping.
type slow struct{ dmcrypt.Engine }

func (s slow) Suspend(ctx context.Context, name string, suspended bool) error {
	if suspended {
		<-time.After(suspendLimit + time.Second)
	}
	return s.Engine.Suspend(ctx, name, suspended)
}

// The limit counts from the request to suspend, because writers wait from then on.
func TestLimitOfAStandstillCountsFromTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := opened(t)
		s := n.process(0)
		s.Engine = slow{s.Engine}
		began := time.Now()
		if _, err := s.Copy(t.Context(), copyID, id, CopyOptions{}); !errors.Is(err, ErrTooLong) ||
			time.Since(began) != suspendLimit+time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if n.nothingOf(copyID); len(n.suspended()) != 0 {
			t.Errorf("suspended %v", n.suspended())
		}
	})
}
