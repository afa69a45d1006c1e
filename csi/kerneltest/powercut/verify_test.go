package powercut

import (
	"bytes"
	"context"
	"crypto/aes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/crypto/xts"

	"github.com/kubeveil/kubeveil/csi/backend"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt/dmcrypttest"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// oneStore is a store with one state, in memory.
type oneStore struct {
	volume.Store
	state volume.State
	n     int
}

func (s *oneStore) Get(context.Context, string) (volume.State, volume.Revision, error) {
	return s.state, volume.Revision(fmt.Sprint(s.n)), nil
}

func (s *oneStore) Update(_ context.Context, st volume.State,
	r volume.Revision) (volume.Revision, error) {
	if r != volume.Revision(fmt.Sprint(s.n)) {
		return "", volume.ErrConflict
	}
	s.state = st
	s.n++
	return volume.Revision(fmt.Sprint(s.n)), nil
}

// oneDisk is a backend with one disk. The disk has the id that it has in the machine.
type oneDisk struct {
	backend.Backend
	id string
}

func (oneDisk) Provision(context.Context, string, int64) error { return nil }

func (d oneDisk) Attach(context.Context, string) (backend.Device, error) {
	return backend.Device{Path: "/dev/one", Number: 1, ID: d.id}, nil
}

func (oneDisk) Detach(context.Context, string) error { return nil }

func (oneDisk) Expand(context.Context, string, int64) error { return nil }

// verifier checks the disk at moments of a log.
type verifier struct {
	t      *testing.T
	replay *Replay
	marks  []Marked
	keys   keyring.Provider
	dir    string
	// looked counts the moments. checked counts the moments with a file system.
	looked, checked int
}

func newVerifier(t *testing.T, log *Log) *verifier {
	t.Helper()
	marks, err := Marks(log, marksStart, marksSize)
	errtest.Must(t, err)
	if len(marks) == 0 {
		t.Fatal("no marks in the log")
	}
	v := &verifier{t: t, replay: NewReplay(log, DiskSize), marks: marks, keys: testKeys(t),
		dir: t.TempDir()}
	// The disk of each moment is written to a file. A file system in memory avoids the writes to
	// the host's disk.
	if dir, err := os.MkdirTemp("/dev/shm", "powercut-"); err == nil {
		v.dir = dir
		t.Cleanup(func() { os.RemoveAll(dir) })
	}
	return v
}

// states returns the states that may have been stored outside the disk at a moment. These are the
// state of the last mark, and the state of the next mark, because a state is stored before its mark
// is written.
func (v *verifier) states(moment int) []TrustedState {
	var out []TrustedState
	for i, m := range v.marks {
		if m.Moment > moment {
			if m.Moment == moment+1 {
				out = append(out, m.TrustedState)
			}
			break
		}
		if i+1 == len(v.marks) || v.marks[i+1].Moment > moment {
			out = append(out, m.TrustedState)
		}
	}
	return out
}

// look checks a moment. If keep is nil, the disk has all writes. Otherwise it has all flushed
// writes and those unflushed writes that keep selects.
func (v *verifier) look(moment int, keep *rand.Rand) error {
	states := v.states(moment)
	if len(states) == 0 {
		return nil // The volume was not requested yet.
	}
	disk, err := v.replay.At(moment, keep)
	if err != nil {
		return err
	}
	v.looked++
	for _, s := range states {
		if err := v.check(disk.Part(volumeStart, volumeSize), s); err != nil {
			return fmt.Errorf("moment %d, everything written %v, phase %s, epoch %d, pending %d, "+
				"%d files: %w",
				moment, keep == nil, s.Volume.Phase, s.Volume.Epoch, s.Volume.PendingEpoch, s.Files,
				err)
		}
	}
	return nil
}

// check returns an error unless a volume with that state opens with that disk.
func (v *verifier) check(d *Disk, s TrustedState) error {
	ctx := context.Background()
	store := &oneStore{state: s.Volume}
	id := s.Volume.Device
	if id == "" {
		id = "none yet"
	}

	opened := d.Over()
	set := volume.NewSet(volume.Config{
		Cluster: cluster, Node: nodeName, Store: store, Engine: dmcrypttest.New(),
		Backend: oneDisk{id: id}, Keys: v.keys,
		OpenDisk: func(string, bool) (blk.Disk, error) { return opened, nil },
	})
	o, err := set.Open(ctx, volumeID, volume.OpenOptions{})
	if s.Volume.Phase == volume.Deleted {
		if !errors.Is(err, volume.ErrDeleted) {
			return fmt.Errorf("a deleted volume opens: %w", err)
		}
		return nil
	}

	if err != nil {
		return err
	}
	if o.State.Epoch <= s.Volume.Epoch || o.State.PendingEpoch != 0 {
		return fmt.Errorf("opened with epoch %d, pending %d", o.State.Epoch, o.State.PendingEpoch)
	}
	if c, err := set.Close(ctx, volumeID, nil); err != nil || !c.Sealed {
		return fmt.Errorf("close: %w", errors.Join(err, c.Why))
	}
	if s.Volume.Content != volume.Made {
		return nil
	}

	v.checked++
	return v.checkFiles(ctx, d, s)
}

// checkFiles decrypts the volume, checks its file system with e2fsck, and looks for the flushed
// files.
func (v *verifier) checkFiles(ctx context.Context, d *Disk, s TrustedState) error {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	image := filepath.Join(v.dir, "plain")
	defer os.Remove(image)
	if err := v.decrypt(ctx, d, s.Volume, image); err != nil {
		return err
	}

	// e2fsck replays the journal, as a mount would. After that it must not find an error.
	out, err := exec.CommandContext(ctx, "e2fsck", "-p", image).CombinedOutput()
	if exit := new(exec.ExitError); err != nil && (!errors.As(err, &exit) || exit.ExitCode() > 1) {
		return fmt.Errorf("e2fsck -p: %w: %s", err, out)
	}

	if out, err := exec.CommandContext(ctx, "e2fsck", "-fn", image).CombinedOutput(); err != nil {
		return fmt.Errorf("e2fsck -fn: %w: %s", err, out)
	}

	files := filepath.Join(v.dir, "files")
	if err := os.Mkdir(files, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(files)
	if out, err := exec.CommandContext(ctx, "debugfs", "-R", "rdump / "+files,
		image).CombinedOutput(); err != nil {
		return fmt.Errorf("debugfs: %w: %s", err, out)
	}

	for i := range s.Files {
		got, err := os.ReadFile(filepath.Join(files, fileName(i)))
		if err != nil || !bytes.Equal(got, fileContent(i)) {
			return fmt.Errorf("file %d of %d that were flushed: %d bytes, %w", i, s.Files, len(got),
				errors.Join(err, errLost))
		}
	}

	return nil
}

// checkPatience bounds the check of one file system.
const checkPatience = 3 * time.Minute

var errLost = errors.New("its content was lost")

// decrypt writes the plain text of the volume to a file, as dm-crypt would return it.
func (v *verifier) decrypt(ctx context.Context, d *Disk, s volume.State, path string) error {
	c, wipe, err := cipherOf(ctx, v.keys, s)
	if err != nil {
		return err
	}
	defer wipe()
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()

	size := max(s.Payload, s.PendingPayload)
	if err := f.Truncate(size); err != nil {
		return err
	}

	sector, plain := make([]byte, block), make([]byte, block)
	for _, i := range d.Written() {
		at := i*block - crypt.DataOffset
		if at < 0 || at >= size {
			continue
		}
		if _, err := d.ReadAt(sector, i*block); err != nil {
			return err
		}
		c.Decrypt(plain, sector, tweak(at))
		if _, err := f.WriteAt(plain, at); err != nil {
			return err
		}
	}

	return nil
}

// tweak returns the number of the sector at an offset as plain64 counts it: in units of 512 bytes
// regardless of the sector size.
func tweak(at int64) uint64 { return uint64(at / 512) }

func cipherOf(ctx context.Context, keys keyring.Provider,
	s volume.State) (*xts.Cipher, func(), error) {
	data, err := keys.Unwrap(ctx, s.Binding(), s.Key)
	if err != nil {
		return nil, nil, err
	}
	defer data.Wipe()
	derived, err := crypt.DeriveKeys(data, s.Binding())
	if err != nil {
		return nil, nil, err
	}
	c, err := xts.NewCipher(aes.NewCipher, derived.Volume.Bytes())
	if err != nil {
		derived.Wipe()
		return nil, nil, err
	}
	return c, derived.Wipe, nil
}

// moments returns the moments to check: before and after each write to the metadata, after each
// mark, and n others that r chooses.
func moments(log *Log, marks []Marked, n int, r *rand.Rand) []int {
	chosen := make([]bool, len(log.Entries)+1)
	for i, e := range log.Entries {
		if e.Length > 0 && e.Offset < volumeStart+crypt.DataOffset &&
			e.Offset+e.Length > volumeStart {
			chosen[i], chosen[i+1] = true, true
		}
	}
	for _, m := range marks {
		chosen[m.Moment] = true
	}
	for range n {
		chosen[r.IntN(len(chosen))] = true
	}
	var out []int
	for i, yes := range chosen {
		if yes {
			out = append(out, i)
		}
	}
	return out
}

const (
	// lookEach is the interval of progress messages.
	lookEach = 30 * time.Second
	// spare is the part of the test's time that is left when the checks end early.
	spare = 2 * time.Minute
	// maxFailures is the number of failures after which the checks end.
	maxFailures = 5
)

// errTime is returned if the time was over before all moments were checked.
var errTime = errors.New("the test's time is over")

// all checks moments of the log: each once with all writes, and twice with a part of the unflushed
// writes. It returns an error if a check fails, or if the time is over before all moments are
// checked.
func (v *verifier) all(n int, r *rand.Rand) error {
	chosen := moments(v.replay.log, v.marks, n, r)
	deadline, bounded := v.t.Deadline()
	began, said := time.Now(), time.Now()
	var wrong []error
	for i, moment := range chosen {
		if bounded && time.Until(deadline) < spare {
			return errors.Join(append(wrong, fmt.Errorf("%w: %d of %d moments were checked in %v",
				errTime, i, len(chosen), time.Since(began).Round(time.Second)))...)
		}
		if time.Since(said) > lookEach {
			said = time.Now()
			v.t.Logf("%d of %d moments in %v", i, len(chosen), time.Since(began).Round(time.Second))
		}
		for _, keep := range []*rand.Rand{nil, r, r} {
			if err := v.look(moment, keep); err != nil {
				wrong = append(wrong, err)
				break
			}
		}
		if len(wrong) == maxFailures {
			break
		}
	}
	return errors.Join(wrong...)
}

// needTools skips the test if a program that checks file systems is missing.
func needTools(t *testing.T) {
	t.Helper()
	for _, name := range []string{"mke2fs", "e2fsck", "debugfs"} {
		nettest.NeedProgram(t, name)
	}
}
