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
	// stageRoom is the size of the disk for the files of both sides. It is a separate disk, because
	// the machine's root is smaller than one volume. Only a small part of it is written.
	stageRoom = 64 << 30
	// roomAt is the mount point of that disk. stageDir is the folder of Kubeveil's driver on it,
	// and image is cryptsetup's file.
	roomAt   = "/mnt/room"
	stageDir = roomAt + "/volumetool"
	image    = roomAt + "/reference.img"
	// stageAt is the mount point of staged file systems.
	stageAt = "/mnt/stage"
)

// stageDisk returns the disk for the files of staged volumes.
func stageDisk(o RunConfig) disk.Disk {
	return disk.Disk{Serial: "room", Path: filepath.Join(o.Dir, "room.img"), Size: stageRoom}
}

// makeRoom makes a file system on stageDisk and mounts it. It does not initialize the inode tables,
// because that runs in the background and would affect the measurement.
func (s *run) makeRoom(ctx context.Context) error {
	_, err := s.machine.Exec(ctx,
		fmt.Sprintf("mkfs.ext4 -q -E nodiscard,lazy_itable_init=1,lazy_journal_init=1 %s && mkdir "+
			"-p %s && mount -o noinit_itable %[1]s %[2]s",
			stageDisk(s.RunConfig).Device(0), roomAt))
	return err
}

// stages measures the time from the request to stage a volume of 10 GiB until its file system is
// mounted. It compares this with cryptsetup and mkfs.ext4 on a loop device of a file of that size.
// The loop device is attached before, so its time is not measured.
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

// ours stages a volume of Kubeveil and unstages it, and returns the time of staging. With make it
// provisions the volume first; with gone it deletes the volume afterwards.
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

// stock does the same as ours with stock programs on a device, which it keeps. what is "new" or
// "existing".
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

// once returns the only time of an answer, or an error if the answer has not exactly one.
func once(a answer.Answer) (time.Duration, error) {
	if len(a.Took) != 1 || a.Took[0] <= 0 {
		return 0, fmt.Errorf("volumetool returned times %v, want one", a.Took)
	}
	return a.Took[0], nil
}
