package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kubeveil/kubeveil/e2e/cluster/storage/claims"
)

// kubeletForgets removes a pod like a kubelet that dies after it unpublished the pod's volume and
// before it unstages it. The next kubelet finds no pod of the staged volume, and leaves the volume
// open (kubernetes#121937). Deleting the claim must still delete the volume.
func (s *Session) kubeletForgets(ctx context.Context) error {
	c := claims.Claim{Name: "forgotten", Kind: claims.Ext4, MiB: 64}
	if err := s.WriteCanary(ctx, c); err != nil {
		return err
	}
	volume, err := s.Volume(ctx, c)
	if err != nil {
		return err
	}
	staged, mapping, err := s.Open(ctx, volume)
	if err != nil {
		return err
	}
	uid, err := s.Kubectl(ctx, "get", "pod", c.Name, "-o", "jsonpath={.metadata.uid}")
	if err != nil {
		return err
	}

	_, err = s.Node(ctx, forget(uid, mapping))
	if err == nil {
		_, err = s.Kubectl(ctx, "delete", "pod", c.Name, "--force", "--grace-period=0")
	}
	if _, start := s.Node(ctx, "systemctl start kubelet"); err != nil || start != nil {
		return errors.Join(err, start)
	}

	// Once the kubelet has ended a pod and started another, it has examined the mounts that it
	// found.
	if err := s.Stop(ctx, files.Name); err != nil {
		return err
	}
	if err := s.checkExpanded(ctx, files, "third"); err != nil {
		return err
	}
	if _, err := s.Node(ctx, "mountpoint -q "+staged); err != nil {
		return fmt.Errorf("the kubelet did not forget the volume, so nothing is tested: %w", err)
	}

	if _, err := s.Kubectl(ctx, "delete", "pvc", c.Name, "--wait=false"); err != nil {
		return err
	}
	return s.Gone(ctx, volume, staged, mapping, images)
}

// forget returns a script that stops the kubelet and removes a pod from the node: the processes
// that have the mapping mounted, the pod's mounts and its folder.
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

// objectLost deletes the VeilVolume of a volume in use, as a restore of an older state of the
// cluster would. The pod must still work. After the pod's end the volume must be closed, and its
// file must stay.
func (s *Session) objectLost(ctx context.Context) error {
	c := claims.Claim{Name: "lost-object", Kind: claims.Ext4, MiB: 64}
	if err := s.WriteCanary(ctx, c); err != nil {
		return err
	}
	path, err := s.Path(ctx, c)
	if err != nil {
		return err
	}
	volume, err := s.Volume(ctx, c)
	if err != nil {
		return err
	}
	staged, mapping, err := s.Open(ctx, volume)
	if err != nil {
		return err
	}

	for _, words := range [][]string{
		{"annotate", "veilvolume", volume, "csi.kubeveil.io/destroy=" + volume},
		{"delete", "veilvolume", volume},
	} {
		if _, err := s.Kubectl(ctx, words...); err != nil {
			return err
		}
	}
	err = claims.Until(ctx, "an event reports that its VeilVolume is gone", func() error {
		out, err := s.Kubectl(ctx, "get", "events", "--field-selector=involvedObject.name="+c.Name,
			"-o", "jsonpath={.items[*].reason}")
		if err == nil && !strings.Contains(out, "VeilVolumeMissing") {
			err = fmt.Errorf("events are %q", out)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := s.Write(ctx, path+"/second", false); err != nil {
		return fmt.Errorf("without the VeilVolume: %w", err)
	}

	// Delete the claim first, so that no new pod can use the volume.
	if _, err := s.Kubectl(ctx, "delete", "pvc", c.Name, "--wait=false"); err != nil {
		return err
	}
	if err := s.Stop(ctx, c.Name); err != nil {
		return err
	}
	file := images + "/" + volume + ".img"
	err = claims.Until(ctx, "the volume is closed and its file stays", func() error {
		_, err := s.Node(ctx, fmt.Sprintf("! mountpoint -q %s && ! dmsetup info %s && test -f %s",
			staged, mapping, file))
		return err
	})
	if err != nil {
		return err
	}

	// Remove the file, as docs/storage.md advises once it is certainly useless.
	if _, err := s.Node(ctx, "rm "+file); err != nil {
		return err
	}
	return s.Gone(ctx, volume, staged, mapping, images)
}
