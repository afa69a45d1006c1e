package storage

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// The claims of the run.
var (
	files    = claim{Name: "files", kind: ext4, MiB: 64}
	filesXFS = claim{Name: "files-xfs", kind: xfs, MiB: 384}
	device   = claim{Name: "device", kind: block, MiB: 64}
	restored = claim{Name: "restored", kind: ext4, MiB: 160, SourceKind: "VolumeSnapshot",
		Source: "snap"}
	cloned = claim{Name: "cloned", kind: ext4, MiB: 160, SourceKind: "PersistentVolumeClaim",
		Source: "files"}
	waits = claim{Name: "waits", kind: kind{class: "kubeveil"}, MiB: 32}
	data  = claim{Name: "data", kind: ext4, MiB: 64}
)

const (
	// dataDir is where the driver keeps what is to last, images the folder of the volumes'
	// ciphertext there.
	dataDir = "/var/lib/kubeveil/csi"
	images  = dataDir + "/volumes"
	// grown is the size to which files is expanded, MiB.
	grown = 160
)

// installing is how many of the cases, the first ones, install the driver.
const installing = 2

func cases() []one {
	return []one{
		{"disk", 3 * time.Minute, (*Session).disk},
		{"install", 10 * time.Minute, (*Session).install},
		{"file-system-ext4", 5 * time.Minute,
			func(s *Session, ctx context.Context) error { return s.use(ctx, files) }},
		{"file-system-xfs", 5 * time.Minute,
			func(s *Session, ctx context.Context) error { return s.use(ctx, filesXFS) }},
		{"raw-block", 5 * time.Minute, func(s *Session,
			ctx context.Context) error {
			return s.use(ctx, device)
		}},
		{"unknown-parameter", 2 * time.Minute, (*Session).unknownParameter},
		{"key-service-away", 5 * time.Minute, (*Session).keyServiceAway},
		{"key-service-comes", 5 * time.Minute, (*Session).keyServiceComes},
		{"new-key-encryption-key", 5 * time.Minute, (*Session).rewrap},
		{"key-service-goes", 8 * time.Minute, (*Session).keyServiceGoes},
		{"nothing-in-clear", 2 * time.Minute, func(s *Session, ctx context.Context) error {
			return s.nothingInClear(ctx, "while volumes are open", 3)
		}},
		{"expand-mounted", 5 * time.Minute, (*Session).expand},
		{"snapshot", 5 * time.Minute, (*Session).snapshot},
		{"restore", 5 * time.Minute, func(s *Session,
			ctx context.Context) error {
			return s.copied(ctx, restored, false)
		}},
		{"clone", 5 * time.Minute, func(s *Session,
			ctx context.Context) error {
			return s.copied(ctx, cloned, true)
		}},
		{"bench", 10 * time.Minute, (*Session).measure},
		{"driver-killed", 5 * time.Minute, (*Session).killed},
		{"unstage-while-busy", 5 * time.Minute, (*Session).busy},
		{"forgotten-volume", 8 * time.Minute, (*Session).kubeletForgets},
		{"veilvolume-lost", 8 * time.Minute, (*Session).objectLost},
		{"recovered-by-cryptsetup", 5 * time.Minute, (*Session).recover},
		{"reboot", 15 * time.Minute, (*Session).reboot},
		{"taken-over", 20 * time.Minute, (*Session).takeOver},
		{"copy-beside-emptier-nodes", 20 * time.Minute, (*Session).copyBesideEmptierNodes},
		{"node-that-is-gone", 15 * time.Minute, (*Session).nodeGone},
		{"nothing-in-clear-at-the-end", 2 * time.Minute,
			func(s *Session, ctx context.Context) error {
				return s.nothingInClear(ctx, "after all cases", 6)
			}},
		{"delete", 5 * time.Minute, (*Session).deleted},
		{"uninstall", 5 * time.Minute, (*Session).uninstall},
	}
}

// Prepare installs the driver with its classes on the cluster, as the cases do, and does nothing
// else.
func Prepare(ctx context.Context, s *Session) error {
	for _, step := range cases()[:installing] {
		limited, cancel := context.WithTimeoutCause(ctx, step.limit,
			fmt.Errorf("not done within %v", step.limit))
		err := step.run(s, limited)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// install applies the manifests as in docs/storage.md.
func (s *Session) install(ctx context.Context) error {
	for _, words := range [][]string{
		{"apply", "-k", filepath.Join(s.Manifests, "components/snapshots/crd")},
		{"wait", "--for=condition=Established", "crd", "--all", "--timeout=1m"},
		{"apply", "-k", filepath.Join(s.Manifests, "csi-snapshots")},
	} {
		if _, err := s.kubectl(ctx, words...); err != nil {
			return err
		}
	}
	if err := s.driverReady(ctx, s.Cluster.Machines[0].Name); err != nil {
		return err
	}
	return s.setUp(ctx)
}

// driverReady waits for the driver on a node. Not for the rollout: the control plane's host is a
// node without a kubelet, where the driver's pod never starts.
func (s *Session) driverReady(ctx context.Context, node string) error {
	return until(ctx, "the driver on "+node, func() error {
		out, err := s.driver(ctx, node, `{.items[*].status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && out != "True" {
			err = fmt.Errorf("not Ready: %q", out)
		}
		return err
	})
}

// driver returns a value of the driver's pod on a node, by a path of kubectl.
func (s *Session) driver(ctx context.Context, node, path string) (string, error) {
	return s.kubectl(ctx, "-n", "kube-system", "get", "pods",
		"--selector=app.kubernetes.io/component=veil-csi",
		"--field-selector=spec.nodeName="+node, "-o", "jsonpath="+path)
}

// killed kills the driver: what is mounted goes on, and the next pod gets its volume.
func (s *Session) killed(ctx context.Context) error {
	path, err := s.path(ctx, files)
	if err != nil {
		return err
	}
	if _, err := s.node(ctx, "kill -9 $(pidof veil-csi)"); err != nil {
		return err
	}
	if err := s.write(ctx, path+"/third", false); err != nil {
		return fmt.Errorf("without the driver: %w", err)
	}
	if err := s.stop(ctx, files.Name); err != nil {
		return err
	}
	return s.again(ctx, files, "third")
}

// busy holds a file of the volume open beyond the pod's end: the volume stays open until it is let
// go, and is closed then.
func (s *Session) busy(ctx context.Context) error {
	volume, err := s.volume(ctx, files)
	if err != nil {
		return err
	}

	staged, _, err := s.open(ctx, volume)
	if err != nil {
		return err
	}
	holder, err := s.node(ctx, "cd "+staged+" && { sleep 600 >/dev/null 2>&1 & echo $!; }")
	if err != nil {
		return err
	}

	mounted := "mountpoint -q " + staged
	err = s.stop(ctx, files.Name)
	if err == nil {
		err = until(ctx, "the driver reports that it is in use", func() error {
			pod, err := s.driver(ctx, s.Cluster.Machines[0].Name, "{.items[0].metadata.name}")
			if err != nil {
				return err
			}
			out, err := s.kubectl(ctx, "-n", "kube-system", "logs", pod, "-c", "veil-csi",
				"--tail=50")
			if err == nil && !strings.Contains(out, "in use") {
				err = errors.New("it does not")
			}
			return err
		})
	}

	if err == nil {
		_, err = s.node(ctx, mounted)
	}
	if _, end := s.node(ctx, "kill "+holder); end != nil || err != nil {
		return errors.Join(err, end)
	}

	err = until(ctx, "the volume is closed when it is let go", func() error {
		_, err := s.node(ctx, "! "+mounted)
		return err
	})
	return errors.Join(err, s.again(ctx, files, "third"))
}

// reboot takes the node's power: its pods come back with their volumes.
func (s *Session) reboot(ctx context.Context) error {
	if _, err := s.node(ctx, "sync"); err != nil {
		return err
	}
	m := s.Cluster.Machines[0]
	before, err := s.node(ctx, "cat /proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	if err := s.Cluster.Reboot(ctx, m.Name); err != nil {
		return err
	}
	err = until(ctx, "the node's new boot is known", func() error {
		out, err := s.kubectl(ctx, "get", "node", m.Name, "-o",
			"jsonpath={.status.nodeInfo.bootID}")
		if err == nil && out == before {
			err = errors.New("it is still the boot before")
		}
		return err
	})
	if err != nil {
		return err
	}
	return until(ctx, "the pod has its volume again",
		func() error { return s.again(ctx, files, "third") })
}

// deleted deletes everything: nothing is left on the node.
func (s *Session) deleted(ctx context.Context) error {
	for _, words := range [][]string{{"delete", "pods", "--all"},
		{"delete", "volumesnapshots", "--all"}, {"delete", "pvc", "--all"}} {
		if _, err := s.kubectl(ctx, words...); err != nil {
			return err
		}
	}
	return until(ctx, "nothing is left", func() error {
		out, err := s.node(ctx, "ls "+images+
			"; dmsetup ls | grep kubeveil; losetup -nO BACK-FILE | grep /volumes/; true")
		if err != nil {
			return err
		}
		states, err := s.kubectl(ctx, "get", "veilvolumes", "-o", "name")
		if err == nil && out+states != "" {
			err = fmt.Errorf("there are %q and %q", out, states)
		}
		return err
	})
}
