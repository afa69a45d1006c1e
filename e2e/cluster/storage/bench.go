package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/template"

	"github.com/kubeveil/kubeveil/e2e/cluster/storage/claims"
	"github.com/kubeveil/kubeveil/pkg/bench"
)

// clear has a StorageClass and its only volume, which is in clear on the disk of the encrypted
// volumes.
var clear = template.Must(template.New("clear").Parse(`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: e2e-clear}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: e2e-clear}
spec:
  storageClassName: e2e-clear
  capacity: {storage: {{.MiB}}Mi}
  accessModes: [ReadWriteOnce]
  local: {path: {{.Path}}}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [{{.Node}}]}]}]}}
`))

// measure runs `veilctl bench storage` to compare an encrypted class with clear, as a user does. It
// checks that figures exist, but does not judge them.
func (s *Session) measure(ctx context.Context) error {
	const path = dataDir + "/clear"
	if _, err := s.Node(ctx, "mkdir "+path); err != nil {
		return err
	}
	err := s.Apply(ctx, clear, map[string]any{"MiB": 128, "Path": path,
		"Node": s.Cluster.Machines[0].Name})
	if err == nil {
		err = s.measured(ctx)
	}
	_, gone := s.Kubectl(ctx, "delete", "pv/e2e-clear", "storageclass/e2e-clear")
	_, left := s.Node(ctx, "rm -r "+path)
	return errors.Join(err, gone, left)
}

func (s *Session) measured(ctx context.Context) error {
	out, err := s.Shell(ctx, fmt.Sprintf("veilctl bench storage --class %s --baseline-class "+
		"e2e-clear --platform %s --size 64 --rounds 1 --seconds 1 --out . >log 2>&1 || { cat "+
		"log; exit "+
		"1; }; test -s report.html; cat result.json",
		claims.Ext4.Class, s.Cluster.Platform()))
	if err != nil {
		return err
	}
	r, err := bench.Parse([]byte(out))
	if err != nil {
		return err
	}
	for _, want := range []string{"randread_4k", "randwrite_1024k"} {
		c := r.Find(want, 0)
		if c == nil || c.Ours.Median <= 0 || c.Base == nil || c.Base.Median <= 0 {
			return fmt.Errorf("veilctl did not measure %s for both classes: %+v", want, c)
		}
	}
	left, err := s.Kubectl(ctx, "get", "namespaces", "-o", "name")
	if err == nil && strings.Contains(left, "kubeveil-bench") {
		err = fmt.Errorf("a namespace is left: %s", left)
	}
	return err
}
