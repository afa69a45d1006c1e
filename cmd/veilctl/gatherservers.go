package main

import (
	"context"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/preflight"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// staticServers looks for kube-apiserver's pods, which kubeadm labels so.
func (g *gatherer) staticServers(ctx context.Context) error {
	list, err := g.Client.CoreV1().Pods(remote.SystemNamespace).List(ctx,
		metav1.ListOptions{LabelSelector: "component=kube-apiserver"})
	if err != nil {
		return err
	}
	var found []preflight.StaticServer
	for _, p := range list.Items {
		s := preflight.StaticServer{Pod: p.Name}
		for _, container := range p.Spec.Containers {
			for _, arg := range append(container.Command, container.Args...) {
				if v, ok := strings.CutPrefix(arg, "--goaway-chance="); ok {
					s.GoAwayChance = v
				}
			}
		}
		found = append(found, s)
	}
	g.put(func(f *preflight.Facts) { f.StaticServers = found })
	return nil
}
