package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/e2e/lab/addressplan"
)

// mostIdle bounds how many control planes a pool keeps while no lab has them: each takes some 400
// MB.
const mostIdle = 3

// Pool keeps control planes of labs that have ended for labs to come. An API server that starts
// takes seconds of processor time. The zero value is an empty pool. Methods may be called from
// several goroutines. Close ends the control planes.
//
// A lab gets one of its address family, without the objects of an earlier lab. A control plane does
// not come back if the lab had several API servers or flags for them, if it saw the host, if etcd
// was started again, or if an object that was there before the lab's first node was changed or
// deleted: the lab then ends it.
type Pool struct {
	mu   sync.Mutex
	idle []*Control
}

// given is what a control plane has before a lab adds anything.
type given struct {
	etcd *Process
	// objects holds the writers of each object. It is nil if no other lab may have the control
	// plane.
	objects map[types.UID]string
}

// take returns a control plane for a lab and removes it from the pool. Nil means that there is
// none.
func (p *Pool) take(l *Lab) *Control {
	if p == nil || !l.opts.ordinaryServer() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.idle, func(c *Control) bool {
		return c.lab.opts.Family == l.opts.Family && c.etcd.Running() && c.APIServer.Running()
	})
	if i < 0 {
		return nil
	}

	c := *p.idle[i] // the earlier lab keeps its own value
	p.idle = slices.Delete(p.idle, i, i+1)
	c.lab, c.host.lab, c.given = l, l, given{}
	c.host.Env = l.env()
	return &c
}

// put makes the control plane of a lab that has ended fit for another one, or ends it.
func (p *Pool) put(c *Control) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.forget(ctx); err != nil {
		c.lab.log.Info("the control plane is not used again", "reason", err)
		return c.end()
	}

	p.mu.Lock()
	p.idle = append(p.idle, c)
	var over *Control
	if len(p.idle) > mostIdle {
		over, p.idle = p.idle[0], p.idle[1:]
	}
	p.mu.Unlock()
	if over != nil {
		return over.end()
	}
	return nil
}

// Close ends the control planes that no lab has.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, c := range p.idle {
		errs = append(errs, c.end())
	}
	p.idle = nil
	return errors.Join(errs...)
}

// ordinaryServer reports whether the lab's API server is like the API server of any other lab of
// its family.
func (o Options) ordinaryServer() bool { return o.APIServers == 1 && o.APIServerFlags == nil }

// end ends the host and its programs.
func (c *Control) end() error { return errors.Join(stopAll([]*Host{c.host})...) }

// returns reports whether the control plane goes to the lab's pool when the lab ends.
func (c *Control) returns() bool {
	return c != nil && c.given.objects != nil && !c.host.shown.Load() &&
		!c.host.filtered.Load() && c.etcd == c.given.etcd && c.etcd.Running() &&
		c.APIServer.Running()
}

// join plugs the control plane of an earlier lab into this one. Its artefacts stay where they are;
// the lab has a link to them.
func (c *Control) join(ctx context.Context) error {
	if err := os.Symlink(c.host.Dir, filepath.Join(c.lab.Dir, c.host.Name)); err != nil {
		return err
	}
	if err := c.lab.plug(ctx, c.host, c.host.Name, "eth0",
		c.lab.opts.Family.Underlay(addressplan.ControlHost)); err != nil {
		return err
	}
	if err := c.applyManifests(ctx); err != nil {
		return err
	}
	return c.remember(ctx)
}

// remember notes what is there before the lab's first node, if the lab has a pool.
func (c *Control) remember(ctx context.Context) error {
	if c.lab.opts.Pool == nil || !c.lab.opts.ordinaryServer() {
		return nil
	}
	objects := map[types.UID]string{}
	err := c.eachObject(ctx, func(_ schema.GroupVersionResource,
		o *unstructured.Unstructured) error {
		objects[o.GetUID()] = writers(o)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list all objects: %w", err)
	}
	c.given = given{c.etcd, objects}
	return nil
}

// forget deletes the objects that were added since remember. It returns an error if one of the
// others was changed or is gone, or if an object cannot be deleted.
func (c *Control) forget(ctx context.Context) error {
	return Until(ctx, 20*time.Second, func() error {
		there, added := map[types.UID]bool{}, 0
		var namespaces []string
		err := c.eachObject(ctx, func(r schema.GroupVersionResource,
			o *unstructured.Unstructured) error {
			there[o.GetUID()] = true
			was, known := c.given.objects[o.GetUID()]
			now := writers(o)
			if known && now != was {
				return Stop(fmt.Errorf("%s %s was written by %q, and before by %q", r.Resource,
					o.GetName(), now, was))
			}
			// What the API server adds by itself is like in a new one.
			if known || now == "" {
				return nil
			}
			added++
			if r.Resource == "namespaces" {
				namespaces = append(namespaces, o.GetName())
				return nil
			}
			return c.remove(ctx, r, o)
		})
		if err != nil {
			return err
		}
		if added == len(namespaces) { // they are empty
			err = c.removeNamespaces(ctx, namespaces)
		}
		if err == nil && added > 0 {
			err = fmt.Errorf("%d objects are left", added)
		}
		if err != nil {
			return err
		}
		for uid, by := range c.given.objects {
			if !there[uid] && by != "" { // else the API server makes it again
				return Stop(fmt.Errorf("an object is gone that was written by %q", by))
			}
		}
		return nil
	})
}

// eachObject passes every object that can be deleted to visit, some of them by two resources.
func (c *Control) eachObject(ctx context.Context,
	visit func(schema.GroupVersionResource, *unstructured.Unstructured) error) error {
	lists, err := c.Client.Discovery().ServerPreferredResources()
	if err != nil {
		return err
	}

	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return err
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "delete") {
				continue
			}
			resource := gv.WithResource(r.Name)
			all, err := c.Dynamic.Resource(resource).List(ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) {
				continue // its definition has just been deleted
			}
			if err != nil {
				return fmt.Errorf("list %s: %w", r.Name, err)
			}
			for i := range all.Items {
				if err := visit(resource, &all.Items[i]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// writers returns the programs that wrote an object, except the API server itself.
func writers(o *unstructured.Unstructured) string {
	fields := o.GetManagedFields()
	if len(fields) == 0 {
		return "a client that set no field"
	}
	var names []string
	for _, f := range fields {
		if f.Manager != "kube-apiserver" {
			names = append(names, f.Manager)
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), " ")
}

// remove deletes an object. Its finalizers go with it: the programs that they are for run nowhere.
func (c *Control) remove(ctx context.Context, r schema.GroupVersionResource,
	o *unstructured.Unstructured) error {
	at := c.Dynamic.Resource(r).Namespace(o.GetNamespace())
	background, atOnce := metav1.DeletePropagationBackground, int64(0)
	err := at.Delete(ctx, o.GetName(), metav1.DeleteOptions{PropagationPolicy: &background,
		GracePeriodSeconds: &atOnce})
	if err == nil && len(o.GetFinalizers()) > 0 && r.Resource != "customresourcedefinitions" {
		_, err = at.Patch(ctx, o.GetName(), types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is gone, or the next look finds it
	}
	if err != nil {
		return Stop(fmt.Errorf("delete %s %s: %w", r.Resource, o.GetName(), err))
	}
	return nil
}

// removeNamespaces deletes empty namespaces, as the controller of namespaces does.
func (c *Control) removeNamespaces(ctx context.Context, names []string) error {
	all := c.Client.CoreV1().Namespaces()
	for _, name := range names {
		err := all.Delete(ctx, name, metav1.DeleteOptions{})
		if err == nil {
			_, err = all.Finalize(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
				metav1.UpdateOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return Stop(fmt.Errorf("delete namespace %s: %w", name, err))
		}
	}
	return nil
}
