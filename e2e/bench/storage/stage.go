package storage

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/disk"
	"github.com/kubeveil/kubeveil/e2e/disk/answer"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// Cases of staging.
const (
	caseNew      = "stage_new"
	caseExisting = "stage_existing"
)

const (
	stageSize = 10 << 30
	// stageRoom is the size of the disk of its own on which the files of both sides are: the
	// machine's root has less than one volume needs. Little of it is written.
	stageRoom = 64 << 30
	// roomAt is where that disk is mounted; below it are the driver's folder and the file that
	// cryptsetup has.
	roomAt   = "/mnt/room"
	stageDir = roomAt + "/volumetool"
	image    = roomAt + "/reference.img"
	// stageAt is where file systems are mounted.
	stageAt = "/mnt/stage"
)

// stageDisk is the disk for the files of staged volumes.
func stageDisk(o Options) disk.Disk {
	return disk.Disk{Serial: "room", Path: filepath.Join(o.Dir, "room.img"), Size: stageRoom}
}

// makeRoom mounts that disk. Its inode tables are left as they are: work in the background would be
// measured.
func (s *run) makeRoom(ctx context.Context) error {
	_, err := s.machine.Exec(ctx,
		fmt.Sprintf("mkfs.ext4 -q -E nodiscard,lazy_itable_init=1,lazy_journal_init=1 %s && mkdir "+
			"-p %s && mount -o noinit_itable %[1]s %[2]s",
			stageDisk(s.Options).Device(0), roomAt))
	return err
}

// stages measures how long it takes from the request to stage a volume of 10 GiB to its mounted
// file system, beside what cryptsetup and mkfs.ext4 take on a loop device of a file of that size,
// which is attached before their time begins.
func (s *run) stages(ctx context.Context) error {
	if err := s.makeRoom(ctx); err != nil {
		return err
	}
	loop, err := s.machine.Exec(ctx, fmt.Sprintf("truncate -s %d %[2]s && losetup --direct-io=on "+
		"--sector-size 4096 --find --show %[2]s", stageSize, image))
	if err != nil {
		return err
	}

	device := strings.TrimSpace(string(loop))
	defer func() {
		_, _ = s.machine.Exec(context.WithoutCancel(ctx), "losetup -d "+device+"; rm "+image)
	}()
	const existing = "pvc-existing"
	if _, err := s.ours(ctx, existing, true, false); err != nil {
		return err
	}
	if _, err := s.stock(ctx, "new", device); err != nil {
		return err
	}

	n := 0
	measured := func(took time.Duration, err error) (bench.Sample, error) {
		return bench.Sample{Value: float64(took.Microseconds()) / 1000}, err
	}
	err = s.Both(ctx, []bench.Comparison{
		{Name: caseNew, Unit: bench.Millisecond, BaseName: sideCrypt,
			Ours: func(ctx context.Context) (bench.Sample, error) {
				n++
				return measured(s.ours(ctx, fmt.Sprintf("pvc-%d", n), true, true))
			},
			Base: func(ctx context.Context) (bench.Sample, error) {
				return measured(s.stock(ctx, "new", device))
			}},
		{Name: caseExisting, Unit: bench.Millisecond, BaseName: sideCrypt,
			Ours: func(ctx context.Context) (bench.Sample, error) {
				return measured(s.ours(ctx, existing, false, false))
			},
			Base: func(ctx context.Context) (bench.Sample, error) {
				return measured(s.stock(ctx, "existing", device))
			}},
	})

	_, end := s.machine.Do(ctx, "--dir", stageDir, "delete", existing)
	return errors.Join(err, end)
}

// ours stages a volume in a file and unstages it again. It is made first when it is new, and
// deleted when it is not to stay.
func (s *run) ours(ctx context.Context, volume string, make, gone bool) (time.Duration, error) {
	steps := [][]string{{"stage", volume, stageAt}, {"unstage", volume, stageAt}}
	if make {
		steps = append([][]string{{"provision", volume, fmt.Sprint(stageSize)}}, steps...)
	}
	if gone {
		steps = append(steps, []string{"delete", volume})
	}
	var staged answer.Answer
	for _, words := range steps {
		a, err := s.machine.Do(ctx, append([]string{"--dir", stageDir, "--tuning",
			string(s.Tuning)},
			words...)...)
		if err != nil {
			return 0, err
		}
		if words[0] == "stage" {
			staged = a
		}
	}
	return once(staged)
}

// stock is the same by stock programs, on a device that stays.
func (s *run) stock(ctx context.Context, what, device string) (time.Duration, error) {
	a, err := s.machine.Do(ctx, "--tuning", string(s.Tuning), "reference", what, device, stageAt)
	if err != nil {
		return 0, err
	}
	if _, err := s.machine.Exec(ctx, fmt.Sprintf("umount %s && cryptsetup close %s", stageAt,
		filepath.Base(a.Path))); err != nil {
		return 0, err
	}
	return once(a)
}

// once is the one time of an answer.
func once(a answer.Answer) (time.Duration, error) {
	if len(a.Took) != 1 || a.Took[0] <= 0 {
		return 0, fmt.Errorf("volumetool returned times %v, want one", a.Took)
	}
	return a.Took[0], nil
}
