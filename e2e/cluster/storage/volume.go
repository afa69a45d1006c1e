package storage

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/kubeveil/kubeveil/e2e/cluster/storage/claims"
)

// unknownParameter checks that a claim whose class has an unknown parameter is refused, with an
// event that names the parameter.
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

	// Select a node, as the scheduler does for the first pod.
	node := s.Cluster.Machines[0].Name
	if _, err := s.Kubectl(ctx, "annotate", "pvc", "misspelt",
		"volume.kubernetes.io/selected-node="+node); err != nil {
		return err
	}

	err = claims.Until(ctx, "the claim is refused", func() error {
		out, err := s.Kubectl(ctx, "get", "events", "--field-selector=involvedObject.name=misspelt",
			"-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, `unknown parameter "tunning"`) {
			err = fmt.Errorf("events are %q", out)
		}
		return err
	})
	_, gone := s.Kubectl(ctx, "delete", "pvc/misspelt", "storageclass/e2e-misspelt")

	return errors.Join(err, gone)
}

// expand expands the claim files while its pod has it mounted, and waits until the file system has
// grown.
func (s *Session) expand(ctx context.Context) error {
	size := fmt.Sprintf("%dMi", grown)
	if _, err := s.Kubectl(ctx, "patch", "pvc", files.Name, "-p",
		`{"spec":{"resources":{"requests":{"storage":"`+size+`"}}}}`); err != nil {
		return err
	}
	path, err := s.Path(ctx, files)
	if err != nil {
		return err
	}
	return claims.Until(ctx, "the file system grows", func() error {
		said, err := s.Kubectl(ctx, "get", "pvc", files.Name, "-o",
			"jsonpath={.status.capacity.storage}")
		if err != nil {
			return err
		}
		blocks, err := s.Node(ctx, "df --output=size -m "+path+" | tail -n 1")
		if err != nil {
			return err
		}
		if n, err := strconv.Atoi(blocks); err != nil || n < grown*8/10 || said != size {
			return fmt.Errorf("the claim's capacity is %q, the file system has %s MiB", said,
				blocks)
		}
		return nil
	})
}

// snapshot takes a snapshot of the claim files, and then writes a second file, which the snapshot
// must not have.
func (s *Session) snapshot(ctx context.Context) error {
	err := s.Cluster.Apply(ctx, []byte(`apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: snap}
spec: {volumeSnapshotClassName: e2e, source: {persistentVolumeClaimName: files}}
`))
	if err != nil {
		return err
	}
	err = claims.Until(ctx, "the snapshot is ready", func() error {
		out, err := s.Kubectl(ctx, "get", "volumesnapshot", "snap", "-o",
			"jsonpath={.status.readyToUse} {.status.error.message}")
		if err == nil && !strings.HasPrefix(out, "true") {
			err = fmt.Errorf("its status is %q", out)
		}
		return err
	})
	if err != nil {
		return err
	}
	path, err := s.Path(ctx, files)
	if err != nil {
		return err
	}
	return s.Write(ctx, path+"/second", false)
}

// copied starts the pod of a copy. It checks that the first file is equal to the source's, and that
// the copy has the second file if and only if second is set.
func (s *Session) copied(ctx context.Context, c claims.Claim, second bool) error {
	path, err := s.Started(ctx, c)
	if err != nil {
		return err
	}
	source, err := s.Path(ctx, files)
	if err != nil {
		return err
	}
	out, err := s.Node(ctx, fmt.Sprintf("cmp %s/first %s/first && ls %[1]s", path, source))
	if err != nil {
		return err
	}
	if strings.Contains(out, "second") != second {
		return fmt.Errorf("the copy has the files %q; want the second file: %v",
			strings.Fields(out), second)
	}
	return nil
}

// checkExpanded calls CheckFile for the claim that was expanded.
func (s *Session) checkExpanded(ctx context.Context, c claims.Claim, file string) error {
	c.MiB = grown
	return s.CheckFile(ctx, c, file)
}
