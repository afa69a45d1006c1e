package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// kubeletForgets takes a pod away as a kubelet does that dies between unpublishing the pod's volume
// and unstaging it: the next kubelet finds no pod that the staged volume is of, and leaves it open
// (kubernetes#121937). Deleting the claim deletes the volume all the same.
func (s *Session) kubeletForgets(ctx context.Context) error {
	c := claim{Name: "forgotten", kind: ext4, MiB: 64}
	if err := s.use(ctx, c); err != nil {
		return err
	}
	volume, err := s.volume(ctx, c)
	if err != nil {
		return err
	}
	staged, mapping, err := s.open(ctx, volume)
	if err != nil {
		return err
	}
	uid, err := s.kubectl(ctx, "get", "pod", c.Name, "-o", "jsonpath={.metadata.uid}")
	if err != nil {
		return err
	}

	_, err = s.node(ctx, forget(uid, mapping))
	if err == nil {
		_, err = s.kubectl(ctx, "delete", "pod", c.Name, "--force", "--grace-period=0")
	}
	if _, start := s.node(ctx, "systemctl start kubelet"); err != nil || start != nil {
		return errors.Join(err, start)
	}

	// This kubelet has looked at what it found when it ends a pod and starts another.
	if err := s.stop(ctx, files.Name); err != nil {
		return err
	}
	if err := s.again(ctx, files, "third"); err != nil {
		return err
	}
	if _, err := s.node(ctx, "mountpoint -q "+staged); err != nil {
		return fmt.Errorf("the kubelet did not forget the volume, so nothing is tested: %w", err)
	}

	if _, err := s.kubectl(ctx, "delete", "pvc", c.Name, "--wait=false"); err != nil {
		return err
	}
	return s.gone(ctx, volume, staged, mapping)
}

// gone waits until nothing of a volume is left, in the cluster and on the node.
func (s *Session) gone(ctx context.Context, volume, staged, mapping string) error {
	return until(ctx, "the volume is closed and deleted", func() error {
		left, err := s.kubectl(ctx, "get", "pvc,pv,veilvolumes", "-A", "-o", "name")
		if err == nil && strings.Contains(left, volume) {
			err = fmt.Errorf("there are %s", strings.Fields(left))
		}
		if err != nil {
			return err
		}
		out, err := s.node(ctx, fmt.Sprintf("mountpoint -q %s && echo it is mounted; "+
			"dmsetup info -c --noheadings -o name %s 2>/dev/null; ls %s | grep %s; true", staged,
			mapping, images, volume))
		if err == nil && out != "" {
			err = fmt.Errorf("on the node there is %q", out)
		}
		return err
	})
}

// open returns where on the node the kubelet has a volume staged, and its mapping's name.
func (s *Session) open(ctx context.Context, volume string) (staged, mapping string, err error) {
	staged, err = s.node(ctx, "findmnt -rno TARGET | grep "+
		"'^/var/lib/kubelet/plugins/kubernetes.io/csi/csi.kubeveil.io/.*/globalmount$' | while "+
		"read t; do "+
		"grep -qs "+volume+" $(dirname $t)/vol_data.json && echo $t; done; true")
	if err == nil && staged == "" {
		err = errors.New("no such mount")
	}
	if err != nil {
		return "", "", fmt.Errorf("where volume %s is staged: %w", volume, err)
	}

	mapping, err = s.node(ctx, "cat /sys/dev/block/$(findmnt -rno MAJ:MIN --mountpoint "+staged+
		")/dm/name")
	return staged, mapping, err
}

// forget is a script that stops the kubelet and takes from the node what a pod has there: its
// processes that have the mapping mounted, its mounts and its folder.
func forget(uid, mapping string) string {
	return `set -e
systemctl stop kubelet
pod=/var/lib/kubelet/pods/` + uid + `
dev=$(dmsetup info -c --noheadings --separator : -o major,minor ` + mapping + `)
for p in $(grep -lsE "^[0-9]+ [0-9]+ $dev [^ ]+ /data " /proc/[0-9]*/mountinfo | cut -d/ -f3); do
	kill -9 $p
done
for i in $(seq 60); do
	at=$(findmnt -rno TARGET | grep "^$pod/" | sort -r)
	[ -n "$at" ] || break
	umount $at || sleep 1
done
rm -r --one-file-system $pod`
}

// objectLost deletes the VeilVolume of a volume that is in use, as a restore of the cluster's state
// does that is older than the volume. Its pod goes on. When it ends, the volume is closed, and its
// file stays.
func (s *Session) objectLost(ctx context.Context) error {
	c := claim{Name: "lost-object", kind: ext4, MiB: 64}
	if err := s.use(ctx, c); err != nil {
		return err
	}
	path, err := s.path(ctx, c)
	if err != nil {
		return err
	}
	volume, err := s.volume(ctx, c)
	if err != nil {
		return err
	}
	staged, mapping, err := s.open(ctx, volume)
	if err != nil {
		return err
	}

	for _, words := range [][]string{
		{"annotate", "veilvolume", volume, "csi.kubeveil.io/destroy=" + volume},
		{"delete", "veilvolume", volume},
	} {
		if _, err := s.kubectl(ctx, words...); err != nil {
			return err
		}
	}
	err = until(ctx, "an event reports that its VeilVolume is gone", func() error {
		out, err := s.kubectl(ctx, "get", "events", "--field-selector=involvedObject.name="+c.Name,
			"-o", "jsonpath={.items[*].reason}")
		if err == nil && !strings.Contains(out, "VeilVolumeMissing") {
			err = fmt.Errorf("events are %q", out)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := s.write(ctx, path+"/second", false); err != nil {
		return fmt.Errorf("without the VeilVolume: %w", err)
	}

	// The claim first: otherwise its pod would be the next to use the volume.
	if _, err := s.kubectl(ctx, "delete", "pvc", c.Name, "--wait=false"); err != nil {
		return err
	}
	if err := s.stop(ctx, c.Name); err != nil {
		return err
	}
	file := images + "/" + volume + ".img"
	err = until(ctx, "the volume is closed and its file stays", func() error {
		_, err := s.node(ctx, fmt.Sprintf("! mountpoint -q %s && ! dmsetup info %s && test -f %s",
			staged, mapping, file))
		return err
	})
	if err != nil {
		return err
	}

	// As in docs/storage.md, when it is certainly useless.
	if _, err := s.node(ctx, "rm "+file); err != nil {
		return err
	}
	return s.gone(ctx, volume, staged, mapping)
}
