package storage

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/cluster/storage/claims"
)

// The claims of the run.
var (
	files    = claims.Claim{Name: "files", Kind: claims.Ext4, MiB: 64}
	filesXFS = claims.Claim{Name: "files-xfs", Kind: claims.XFS, MiB: 384}
	device   = claims.Claim{Name: "device", Kind: claims.Block, MiB: 64}
	restored = claims.Claim{Name: "restored", Kind: claims.Ext4, MiB: 160,
		SourceKind: "VolumeSnapshot",
		Source:     "snap"}
	cloned = claims.Claim{Name: "cloned", Kind: claims.Ext4, MiB: 160,
		SourceKind: "PersistentVolumeClaim",
		Source:     "files"}
	waits = claims.Claim{Name: "waits", Kind: claims.Kind{Class: "kubeveil"}, MiB: 32}
	data  = claims.Claim{Name: "data", Kind: claims.Ext4, MiB: 64}
)

const (
	// dataDir is the folder of the driver's persistent data. images is the folder below it with the
	// volumes' ciphertext.
	dataDir = "/var/lib/kubeveil/csi"
	images  = dataDir + "/volumes"
	// grown is the size in MiB to which the claim files is expanded.
	grown = 160
)

// installing is the number of cases at the beginning that install the driver.
const installing = 2

func cases() []one {
	return []one{
		{"disk", 3 * time.Minute, (*Session).disk},
		{"install", 10 * time.Minute, (*Session).install},
		{"file-system-ext4", 5 * time.Minute,
			func(s *Session, ctx context.Context) error { return s.WriteCanary(ctx, files) }},
		{"file-system-xfs", 5 * time.Minute,
			func(s *Session, ctx context.Context) error { return s.WriteCanary(ctx, filesXFS) }},
		{"raw-block", 5 * time.Minute, func(s *Session,
			ctx context.Context) error {
			return s.WriteCanary(ctx, device)
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

// Prepare runs only the cases that install the driver and its classes on the cluster.
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

// install applies the manifests as in docs/storage.md, or the chart, and waits for the driver.
func (s *Session) install(ctx context.Context) error {
	for _, words := range [][]string{
		append([]string{"apply"}, s.files("components/snapshots/crd", "snapshots-crd.yaml")...),
		{"wait", "--for=condition=Established", "crd", "--all", "--timeout=1m"},
	} {
		if _, err := s.Kubectl(ctx, words...); err != nil {
			return err
		}
	}
	if err := s.installDriver(ctx); err != nil {
		return err
	}
	if err := s.DriverReady(ctx, s.Cluster.Machines[0].Name); err != nil {
		return err
	}
	return s.SetUp(ctx)
}

// killed kills the driver. Mounted volumes must still work, and the next pod must get its volume.
func (s *Session) killed(ctx context.Context) error {
	path, err := s.Path(ctx, files)
	if err != nil {
		return err
	}
	if _, err := s.Node(ctx, "kill -9 $(pidof veil-csi)"); err != nil {
		return err
	}
	if err := s.Write(ctx, path+"/third", false); err != nil {
		return fmt.Errorf("without the driver: %w", err)
	}
	if err := s.Stop(ctx, files.Name); err != nil {
		return err
	}
	return s.checkExpanded(ctx, files, "third")
}

// busy holds a file of the volume open after the pod's end. The volume must stay open until the
// file is closed, and must be closed then.
func (s *Session) busy(ctx context.Context) error {
	volume, err := s.Volume(ctx, files)
	if err != nil {
		return err
	}

	staged, _, err := s.Open(ctx, volume)
	if err != nil {
		return err
	}
	holder, err := s.Node(ctx, "cd "+staged+" && { sleep 600 >/dev/null 2>&1 & echo $!; }")
	if err != nil {
		return err
	}

	mounted := "mountpoint -q " + staged
	err = s.Stop(ctx, files.Name)
	if err == nil {
		err = claims.Until(ctx, "the driver reports that it is in use", func() error {
			pod, err := s.Driver(ctx, s.Cluster.Machines[0].Name, "{.items[0].metadata.name}")
			if err != nil {
				return err
			}
			out, err := s.Kubectl(ctx, "-n", "kube-system", "logs", pod, "-c", "veil-csi",
				"--tail=50")
			if err == nil && !strings.Contains(out, "in use") {
				err = errors.New("its log does not")
			}
			return err
		})
	}

	if err == nil {
		_, err = s.Node(ctx, mounted)
	}
	if _, end := s.Node(ctx, "kill "+holder); end != nil || err != nil {
		return errors.Join(err, end)
	}

	err = claims.Until(ctx, "the volume is closed once it is not in use", func() error {
		_, err := s.Node(ctx, "! "+mounted)
		return err
	})
	return errors.Join(err, s.checkExpanded(ctx, files, "third"))
}

// reboot cuts the node's power. Its pods must come back with their volumes.
func (s *Session) reboot(ctx context.Context) error {
	if _, err := s.Node(ctx, "sync"); err != nil {
		return err
	}
	m := s.Cluster.Machines[0]
	before, err := s.Node(ctx, "cat /proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	if err := s.Cluster.Reboot(ctx, m.Name); err != nil {
		return err
	}
	err = claims.Until(ctx, "the node's new boot is known", func() error {
		out, err := s.Kubectl(ctx, "get", "node", m.Name, "-o",
			"jsonpath={.status.nodeInfo.bootID}")
		if err == nil && out == before {
			err = errors.New("it is still the earlier boot")
		}
		return err
	})
	if err != nil {
		return err
	}
	return claims.Until(ctx, "the pod has its volume again",
		func() error { return s.checkExpanded(ctx, files, "third") })
}

// deleted deletes all pods, snapshots and claims. Nothing of them may be left on the node.
func (s *Session) deleted(ctx context.Context) error {
	for _, words := range [][]string{{"delete", "pods", "--all"},
		{"delete", "volumesnapshots", "--all"}, {"delete", "pvc", "--all"}} {
		if _, err := s.Kubectl(ctx, words...); err != nil {
			return err
		}
	}
	return claims.Until(ctx, "nothing is left", func() error {
		out, err := s.Node(ctx, "ls "+images+
			"; dmsetup ls | grep kubeveil; losetup -nO BACK-FILE | grep /volumes/; true")
		if err != nil {
			return err
		}
		states, err := s.Kubectl(ctx, "get", "veilvolumes", "-o", "name")
		if err == nil && out+states != "" {
			err = fmt.Errorf("there are %q and %q", out, states)
		}
		return err
	})
}

// installDriver installs the driver by Helm, or from the manifests.
func (s *Session) installDriver(ctx context.Context) error {
	if s.Chart.Folder != "" {
		return s.installChart(ctx)
	}
	_, err := s.Kubectl(ctx, "apply", "-k", filepath.Join(s.Manifests, "csi-snapshots"))
	return err
}

// cleaner selects the pods of manifests/csi-uninstall.
const cleaner = "--selector=app.kubernetes.io/component=csi-cleanup"

// uninstall removes the driver as in docs/storage.md. While ciphertext is left, the clean-up must
// not change the node. Without ciphertext, nothing of the driver may remain.
func (s *Session) uninstall(ctx context.Context) error {
	const left = images + "/left.img"
	if _, err := s.Node(ctx, "touch "+left); err != nil {
		return err
	}

	for _, words := range [][]string{
		{"-n", "kube-system", "delete", "daemonset", "veil-csi", "--wait=true"},
		append([]string{"apply"}, s.files("csi-uninstall", "uninstall-csi.yaml")...),
	} {
		if _, err := s.Kubectl(ctx, words...); err != nil {
			return err
		}
	}

	err := claims.Until(ctx, "the node's cleaner refuses", func() error {
		out, err := s.Kubectl(ctx, "-n", "kube-system", "logs", cleaner, "-c", "cleanup",
			"--tail=5")
		if err == nil && !strings.Contains(out, left) {
			err = fmt.Errorf("it prints %q", out)
		}
		return err
	})
	if err != nil {
		return err
	}

	if _, err := s.Node(ctx, "test -d /var/lib/kubelet/plugins/csi.kubeveil.io && rm "+
		left); err != nil {
		return fmt.Errorf("the clean-up refused, but changed the node: %w", err)
	}

	err = claims.Until(ctx, "the node is clean", func() error {
		out, err := s.Kubectl(ctx, "-n", "kube-system", "get", "pods", cleaner, "-o",
			`jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && out != "True" {
			err = fmt.Errorf("not Ready: %q", out)
		}
		return err
	})
	if err != nil {
		return err
	}

	// The driver's data folder itself stays, because it is the mount point of the disk.
	out, err := s.Node(ctx, "ls -d /var/lib/kubelet/plugins/csi.kubeveil.io "+
		"/var/lib/kubelet/plugins_registry/csi.kubeveil.io-reg.sock /run/kubeveil/csi "+images+" "+
		dataDir+"/claims 2>/dev/null; true")
	if err == nil && out != "" {
		err = errors.New("left: " + out)
	}

	if err != nil {
		return err
	}

	for _, words := range [][]string{
		append([]string{"delete"}, s.files("csi-uninstall", "uninstall-csi.yaml")...),
		{"annotate", "crd", "veilvolumes.csi.kubeveil.io",
			"csi.kubeveil.io/destroy=veilvolumes.csi.kubeveil.io"},
		append([]string{"delete", "--ignore-not-found"}, s.files("csi-snapshots",
			"kubeveil-csi-snapshots.yaml")...),
	} {
		if _, err := s.Kubectl(ctx, words...); err != nil {
			return err
		}
	}

	if s.Chart.Folder != "" {
		return s.uninstallChart(ctx)
	}
	return nil
}
