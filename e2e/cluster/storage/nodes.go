package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/template"

	"github.com/kubeveil/kubeveil/e2e/cluster/storage/claims"
	"github.com/kubeveil/kubeveil/e2e/vm"
)

// filler is a pod that requests CPU and memory of a node, so that the scheduler prefers other
// nodes.
var filler = template.Must(template.New("filler").Parse(`apiVersion: v1
kind: Pod
metadata: {name: filler}
spec:
  nodeName: {{.Node}}
  terminationGracePeriodSeconds: 1
  containers:
    - name: tool
      image: {{.Image}}
      args: [echo-serve]
      resources: {requests: {cpu: 500m, memory: 256Mi}}
`))

// joined adds machines to the cluster, waits until the scheduler knows their capacity for c's
// class, and returns their names. It returns the names even with an error.
func (s *Session) joined(ctx context.Context, machines int, c claims.Claim) (names []string,
	err error) {
	for range machines {
		name, err := s.Cluster.Join(ctx)
		if name != "" {
			names = append(names, name)
		}
		if err != nil {
			return names, err
		}
	}

	for _, name := range names {
		if err := s.DriverReady(ctx, name); err != nil {
			return names, err
		}
		err := claims.Until(ctx, "the scheduler knows the capacity of "+name, func() error {
			out, err := s.Kubectl(ctx, "-n", "kube-system", "get", "csistoragecapacities", "-o",
				`jsonpath={.items[?(@.storageClassName=="`+c.Class+`")].nodeTopology.matchLabels}`)
			if err == nil && !strings.Contains(out, `"`+name+`"`) {
				err = fmt.Errorf("it knows %s", out)
			}
			return err
		})
		if err != nil {
			return names, err
		}
	}

	return names, nil
}

// leave removes machines from the cluster, because later cases need a single node.
func (s *Session) leave(ctx context.Context, names []string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, s.Cluster.Leave(ctx, name))
	}
	return errors.Join(errs...)
}

// copyBesideEmptierNodes clones a volume on the fullest of three nodes, which the scheduler would
// choose last. The clone must be made on the node of its source, even if the claim does not name
// that node.
func (s *Session) copyBesideEmptierNodes(ctx context.Context) error {
	full := s.Cluster.Machines[0].Name
	source := claims.Claim{Name: "source", Kind: claims.Ext4, MiB: 64, Node: full}
	if err := s.Start(ctx, source); err != nil {
		return err
	}
	if err := s.Apply(ctx, filler, map[string]any{"Node": full, "Image": vm.ToolImage}); err !=
		nil {
		return err
	}
	others, err := s.joined(ctx, 2, source)
	if err == nil {
		err = errors.Join(s.Ready(ctx, "filler"), s.copiesGoTo(ctx, full, source))
	}
	err = errors.Join(err, s.leave(ctx, others))
	_, gone := s.Kubectl(ctx, "delete", "pod/filler", "pod/source", "pvc/source")
	return errors.Join(err, gone)
}

func (s *Session) copiesGoTo(ctx context.Context, node string, source claims.Claim) error {
	sent := claims.Claim{Name: "sent", Kind: claims.Ext4, MiB: 64,
		SourceKind: "PersistentVolumeClaim",
		Source:     source.Name, Node: node}
	if err := s.Start(ctx, sent); err != nil {
		return err
	}

	left := sent
	left.Name, left.Node = "left", ""
	err := s.Start(ctx, left)
	if err != nil {
		err = fmt.Errorf("a copy without a selected node: %w", err)
	}
	for _, c := range []claims.Claim{sent, left} {
		on, kubectl := s.Kubectl(ctx, "get", "pod", c.Name, "-o", "jsonpath={.spec.nodeName}")
		if kubectl == nil && on != node {
			kubectl = fmt.Errorf("pod %s is on %q, want %s", c.Name, on, node)
		}
		_, gone := s.Kubectl(ctx, "delete", "pod/"+c.Name, "pvc/"+c.Name)
		err = errors.Join(err, kubectl, gone)
	}

	return err
}

// nodeGone destroys the volume of a machine that has left, with the commands of the documentation.
// The command must refuse while the node is Ready.
func (s *Session) nodeGone(ctx context.Context) error {
	lost := claims.Claim{Name: "lost", Kind: claims.Ext4, MiB: 64}
	names, err := s.joined(ctx, 1, lost)
	if err != nil {
		return errors.Join(err, s.leave(ctx, names))
	}

	lost.Node = names[0]
	volume, err := s.refusedWhileAlive(ctx, lost)
	if err := errors.Join(err, s.leave(ctx, names)); err != nil {
		return err
	}
	said, err := s.Shell(ctx, "veilctl volume destroy "+volume)
	if err != nil {
		return err
	}
	_, after, _ := strings.Cut(said, "now run: ")
	if want := "kubectl delete -n default pvc " + lost.Name; strings.TrimSpace(after) != want {
		return fmt.Errorf("veilctl printed %q, want %q at its end", said, want)
	}

	// The pod was removed with its node, so the claim can be deleted.
	if _, err := s.Kubectl(ctx, strings.Fields(after)[1:]...); err != nil {
		return err
	}

	return claims.Until(ctx, "claim and volume go", func() error {
		out, err := s.Kubectl(ctx, "get", "pvc,pv,veilvolumes", "-A", "-o", "name")
		if err == nil && (strings.Contains(out, volume) || strings.Contains(out, "/"+lost.Name)) {
			err = fmt.Errorf("left are %s", strings.Fields(out))
		}
		return err
	})
}

// refusedWhileAlive starts the claim's pod on its node, checks that veilctl refuses to destroy the
// volume, and returns the volume's name.
func (s *Session) refusedWhileAlive(ctx context.Context, c claims.Claim) (volume string,
	err error) {
	if err := s.Start(ctx, c); err != nil {
		return "", err
	}
	if volume, err = s.Volume(ctx, c); err != nil {
		return "", err
	}
	said, err := s.Shell(ctx, "veilctl volume destroy "+volume)
	if err == nil {
		return "", fmt.Errorf("the volume was destroyed while node %s has it: %s", c.Node, said)
	}
	if !strings.Contains(said, "node "+c.Node+" is Ready") {
		return "", err
	}
	return volume, nil
}
