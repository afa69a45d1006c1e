package storage

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
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

// install applies what docs/storage.md says.
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

// driver says something of the driver's pod on a node, by a path of kubectl.
func (s *Session) driver(ctx context.Context, node, path string) (string, error) {
	return s.kubectl(ctx, "-n", "kube-system", "get", "pods",
		"--selector=app.kubernetes.io/component=veil-csi",
		"--field-selector=spec.nodeName="+node, "-o", "jsonpath="+path)
}

// use starts a claim's pod, writes the canary through its volume, and reads it back.
func (s *Session) use(ctx context.Context, c claim) error {
	if err := s.start(ctx, c); err != nil {
		return err
	}
	path, err := s.path(ctx, c)
	if err != nil {
		return err
	}
	if !c.block {
		path += "/first"
	}
	return s.write(ctx, path, c.block)
}

// write writes a MiB of canaries and wants them there again.
func (s *Session) write(ctx context.Context, path string, device bool) error {
	flags := ""
	if device {
		flags = " oflag=direct"
	}
	line := fmt.Sprintf("yes %s | dd of=%s bs=64k count=16 iflag=fullblock conv=notrunc,fsync%s "+
		"2>/dev/null && dd if=%[2]s bs=64k count=16 2>/dev/null | grep -c %[1]s", s.canary, path,
		flags)
	out, err := s.node(ctx, line)
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(out); err != nil || n < 1000 {
		return fmt.Errorf("%s: the canary is read back %q times", path, out)
	}
	return nil
}

// unknownParameter wants a class with one refused, with the list of those that there are.
func (s *Session) unknownParameter(ctx context.Context) error {
	err := s.Cluster.Apply(ctx, []byte(`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: e2e-misspelt}
provisioner: csi.kubeveil.io
volumeBindingMode: WaitForFirstConsumer
parameters: {tunning: latency}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: misspelt}
spec: {storageClassName: e2e-misspelt, accessModes: [ReadWriteOnce], resources: {requests: {storage: 32Mi}}}
`))
	if err != nil {
		return err
	}

	// As the scheduler does for the first pod.
	node := s.Cluster.Machines[0].Name
	if _, err := s.kubectl(ctx, "annotate", "pvc", "misspelt",
		"volume.kubernetes.io/selected-node="+node); err != nil {
		return err
	}

	err = until(ctx, "the claim is refused", func() error {
		out, err := s.kubectl(ctx, "get", "events", "--field-selector=involvedObject.name=misspelt",
			"-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, `unknown parameter "tunning"`) {
			err = fmt.Errorf("events say %q", out)
		}
		return err
	})
	_, gone := s.kubectl(ctx, "delete", "pvc/misspelt", "storageclass/e2e-misspelt")

	return errors.Join(err, gone)
}

// expand enlarges the claim while its pod has it mounted.
func (s *Session) expand(ctx context.Context) error {
	size := fmt.Sprintf("%dMi", grown)
	if _, err := s.kubectl(ctx, "patch", "pvc", files.Name, "-p",
		`{"spec":{"resources":{"requests":{"storage":"`+size+`"}}}}`); err != nil {
		return err
	}
	path, err := s.path(ctx, files)
	if err != nil {
		return err
	}
	return until(ctx, "the file system grows", func() error {
		said, err := s.kubectl(ctx, "get", "pvc", files.Name, "-o",
			"jsonpath={.status.capacity.storage}")
		if err != nil {
			return err
		}
		blocks, err := s.node(ctx, "df --output=size -m "+path+" | tail -n 1")
		if err != nil {
			return err
		}
		if n, err := strconv.Atoi(blocks); err != nil || n < grown*8/10 || said != size {
			return fmt.Errorf("the claim says %q, the file system has %s MiB", said, blocks)
		}
		return nil
	})
}

// snapshot takes one, and writes a file that it does not have.
func (s *Session) snapshot(ctx context.Context) error {
	err := s.Cluster.Apply(ctx, []byte(`apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: snap}
spec: {volumeSnapshotClassName: e2e, source: {persistentVolumeClaimName: files}}
`))
	if err != nil {
		return err
	}
	err = until(ctx, "the snapshot is ready", func() error {
		out, err := s.kubectl(ctx, "get", "volumesnapshot", "snap", "-o",
			"jsonpath={.status.readyToUse} {.status.error.message}")
		if err == nil && !strings.HasPrefix(out, "true") {
			err = fmt.Errorf("it says %q", out)
		}
		return err
	})
	if err != nil {
		return err
	}
	path, err := s.path(ctx, files)
	if err != nil {
		return err
	}
	return s.write(ctx, path+"/second", false)
}

// copied starts a copy's pod: the first file is there, the second only where the copy is newer.
func (s *Session) copied(ctx context.Context, c claim, second bool) error {
	if err := s.start(ctx, c); err != nil {
		return err
	}
	path, err := s.path(ctx, c)
	if err != nil {
		return err
	}
	source, err := s.path(ctx, files)
	if err != nil {
		return err
	}
	out, err := s.node(ctx, fmt.Sprintf("cmp %s/first %s/first && ls %[1]s", path, source))
	if err != nil {
		return err
	}
	if strings.Contains(out, "second") != second {
		return fmt.Errorf("the copy has %q; the file written later: want %v", strings.Fields(out),
			second)
	}
	return nil
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

// again is has for the claim that was expanded.
func (s *Session) again(ctx context.Context, c claim, file string) error {
	c.MiB = grown
	return s.has(ctx, c, file)
}

// has starts the pod of a claim that has been used, and wants the file.
func (s *Session) has(ctx context.Context, c claim, file string) error {
	if err := s.start(ctx, c); err != nil {
		return err
	}
	path, err := s.path(ctx, c)
	if err != nil {
		return err
	}
	node, err := s.kubectl(ctx, "get", "pod", c.Name, "-o", "jsonpath={.spec.nodeName}")
	if err != nil {
		return err
	}
	out, err := s.on(ctx, node, fmt.Sprintf("grep -c %s %s/%s", s.canary, path, file))
	if err == nil && out == "0" {
		err = fmt.Errorf("%s is not what was written", file)
	}
	return err
}

// busy holds a file of the volume open beyond the pod's end: the volume stays open until it is let
// go, and is closed then.
func (s *Session) busy(ctx context.Context) error {
	volume, err := s.volume(ctx, files)
	if err != nil {
		return err
	}

	staged, err := s.node(ctx, "findmnt -rno TARGET | grep "+
		"'^/var/lib/kubelet/plugins/kubernetes.io/csi/csi.kubeveil.io/.*/globalmount$' | while "+
		"read t; do "+
		"grep -qs "+volume+" $(dirname $t)/vol_data.json && echo $t; done; true")
	if err == nil && staged == "" {
		err = errors.New("no such mount")
	}

	if err != nil {
		return fmt.Errorf("where volume %s is staged: %w", volume, err)
	}
	holder, err := s.node(ctx, "cd "+staged+" && { sleep 600 >/dev/null 2>&1 & echo $!; }")
	if err != nil {
		return err
	}

	mounted := "mountpoint -q " + staged
	err = s.stop(ctx, files.Name)
	if err == nil {
		err = until(ctx, "the driver says that it is in use", func() error {
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
			err = errors.New("it is that of before")
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
