package main

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/csi/volume/filestore"
)

// states is a store of states, with access to the requests of users in it.
type states struct {
	volume.Store
	// cluster returns the id of the cluster.
	cluster  func(ctx context.Context) (string, error)
	takeOver func(ctx context.Context, volume string) (string, error)
	// cache, done, destroy and warn are nil without an API server.
	cache *kubestore.Cache
	done  func(ctx context.Context, volume, request string) error
	// destroy calls do with the volume if it has no owner.
	destroy func(ctx context.Context, volume string, do func(context.Context, string) error) error
	warn    func(ctx context.Context, volume, reason, message string) error
}

// statesIn returns the states that s keeps in Kubernetes.
func statesIn(s *kubestore.Store, log *slog.Logger) states {
	return states{s, s.Cluster, s.TakeOver, s.NewCache(log), s.RewrapDone, s.DestroyUnowned,
		s.Warn}
}

// reader returns the cache, or nil without a cache.
func (s states) reader() volume.Reader {
	if s.cache == nil {
		return nil
	}
	return s.cache
}

// open returns the store that the flags select. It does not connect to the API server.
func (o *options) open(log *slog.Logger) (states, error) {
	if dir, ok := strings.CutPrefix(o.store, storeFile); ok {
		id := func(context.Context) (string, error) { return o.cluster, nil }
		return states{Store: &filestore.Folder{Dir: dir}, cluster: id}, os.MkdirAll(dir, 0o700)
	}
	s, err := kubestore.New(o.kubeconfig, o.node)
	if err != nil {
		return states{}, err
	}
	return statesIn(s, log), nil
}

// clusterID returns the id of the cluster. It retries until the API server answers or ctx ends.
func (s states) clusterID(ctx context.Context, log *slog.Logger) (string, error) {
	for {
		id, err := s.cluster(ctx)
		if err == nil {
			return id, nil
		}
		log.Warn("the id of the cluster could not be read yet; trying again", "in", again, "error", err)
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(again):
		}
	}
}
