package api

import (
	"context"
	"time"

	"github.com/kubeveil/kubeveil/internal/reflector"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Reflect keeps st equal to the API server's list of k, until ctx ends.
func (s *Server) Reflect(ctx context.Context, k object.Kind, st cache.ReflectorStore) {
	s.Reflector(k, st).Run(ctx, st)
}

// Reflector returns a reflector that keeps st equal to the API server's list of k.
func (s *Server) Reflector(k object.Kind, st cache.ReflectorStore) *reflector.Reflector {
	backoff := s.Backoff()
	return &reflector.Reflector{
		Name: k.What, Object: k.New(), Pause: s.Times.Reread,
		List: s.Lister(k, st),
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			w, err := s.request(k, o).Watch(ctx)
			if err != nil {
				return nil, err
			}
			Poke(s.Watched)
			if l, ok := st.(ListReader); ok && o.SendInitialEvents != nil {
				return readStream(w, l.BeginList()), nil
			}
			return w, nil
		},
		Head: func(ctx context.Context) (string, error) { return s.head(ctx, k) },
		Report: func(err error) {
			s.Report("read "+k.What, Explain("list and watch", k, err))
		},
		Backoff: &backoff,
	}
}

// Backoff returns the back-off between failing requests.
func (s *Server) Backoff() wait.Backoff {
	return wait.Backoff{Duration: s.Times.RetryMin, Cap: s.Times.RetryMax, Factor: 2, Steps: 16,
		Jitter: 1}
}

// head returns the current revision of etcd, which a list of k reports.
func (s *Server) head(ctx context.Context, k object.Kind) (revision string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.Times.Request)
	defer cancel()
	list, err := s.Get(ctx, k, metav1.ListOptions{Limit: 1}, whole)
	if err != nil {
		return "", err
	}
	l, err := meta.ListAccessor(list)
	if err != nil {
		return "", err
	}
	return l.GetResourceVersion(), nil
}

// ReflectServed keeps st equal to the API server's list of an optional kind, until ctx ends. If the
// server lacks the kind, st is not changed, and the request is repeated after Times.Unserved. A
// missing kind is not reported as a problem.
func (s *Server) ReflectServed(ctx context.Context, k object.Kind, st cache.ReflectorStore) {
	s.ReflectOptional(ctx, k, st, s.Times.Unserved,
		func(ctx context.Context, r *reflector.Reflector) { r.Run(ctx, st) })
}

// ReflectOptional is ReflectServed for a store that needs its reflector. It calls run with a new
// reflector for st in each round, and waits for pause between rounds. run must return when its ctx
// ends.
func (s *Server) ReflectOptional(ctx context.Context, k object.Kind, st cache.ReflectorStore,
	pause time.Duration, run func(context.Context, *reflector.Reflector)) {
	for ctx.Err() == nil {
		round, end := context.WithCancel(ctx)
		r := s.Reflector(k, st)
		report := r.Report
		r.Report = func(err error) {
			if apierrors.IsNotFound(err) {
				err = nil
				end()
			}
			report(err)
		}
		run(round, r)
		end()
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}
