package sites_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/node/nodetest"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/site/link"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// pair is two clusters that are linked.
type pair struct{ a, b *side }

// newPair makes two clusters without nodes. They end with the test.
func newPair(t *testing.T) (context.Context, pair) {
	t.Helper()
	ctx, la := nodetest.NewLab(t, lab.Options{Nodes: -1})
	return ctx, pairWith(ctx, t, la)
}

// pairWith makes a pair of which a lab is the first cluster.
func pairWith(ctx context.Context, t *testing.T, la *lab.Lab) pair {
	t.Helper()
	lb, err := lab.New(ctx, lab.Options{Nodes: -1, Log: slog.New(slog.NewTextHandler(t.Output(),
		nil))})
	errtest.Must(t, err)
	t.Cleanup(func() {
		if _, err := lb.Finish(); err != nil {
			t.Error(err)
		}
	})
	return pair{newSide(ctx, t, la, "a", "10.244.0.0/16", "192.0.2.0/24"),
		newSide(ctx, t, lb, "b", "10.245.0.0/16", "198.51.100.0/24")}
}

// introduce makes each cluster a site of the other, with credentials for it.
func (p pair) introduce(ctx context.Context, t *testing.T) {
	t.Helper()
	p.a.knows(p.b)
	p.b.knows(p.a)
	p.a.invite(ctx, t, p.b)
	p.b.invite(ctx, t, p.a)
}

// until waits until a check returns nil.
func until(ctx context.Context, t *testing.T, what string, check func() error) {
	t.Helper()
	if err := lab.Until(ctx, within, check); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Two clusters with an API server each are linked: what one exports, the other serves, and nothing
// that is forged. The parts build on each other.
func TestLink(t *testing.T) {
	ctx, p := newPair(t)
	p.introduce(ctx, t)
	p.a.start(ctx)
	p.b.start(ctx)

	for _, part := range []struct {
		name string
		run  func(context.Context, *testing.T)
	}{
		{"an export is imported", p.imported},
		{"seven more sites", p.moreSites},
		{"an export without Service", p.withoutService},
		{"the oldest export decides", p.oldestWins},
		{"rights", p.rights},
		{"the site's API server is away", p.away},
		{"credentials", p.credentials},
		{"forged records", p.forged},
		{"unlinked", p.unlinked},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(ctx, t) }) {
			return
		}
	}
}

func (p pair) imported(ctx context.Context, t *testing.T) {
	p.b.export(ctx, t, "web", false, "10.245.0.5", "10.245.0.6", "198.51.100.1", "10.244.0.9")
	p.b.export(ctx, t, "db", true, "10.245.0.7")
	until(ctx, t, "web is served in a", func() error {
		i, addrs, err := p.a.served(ctx, "web")
		if err != nil || len(i.Spec.IPs) == 0 || len(i.Status.Clusters) != 1 ||
			!slices.Equal(addrs["b"], []string{"10.245.0.5", "10.245.0.6"}) {
			return fmt.Errorf("import %+v, addresses %v: %w", i.Spec, addrs, err)
		}
		return nil
	})
	until(ctx, t, "db is headless in a", func() error {
		i, addrs, err := p.a.served(ctx, "db")
		if err != nil || i.Spec.Type != "Headless" || !slices.Equal(addrs["b"],
			[]string{"10.245.0.7"}) {
			return fmt.Errorf("import %+v, addresses %v: %w", i.Spec, addrs, err)
		}
		return nil
	})

	p.copied(ctx, t)
	svc, err := p.a.Control.Client.CoreV1().Services("shop").Get(ctx, mirror.DerivedName("web"),
		metav1.GetOptions{})
	errtest.Must(t, err)
	if len(svc.Spec.Selector) > 0 || svc.Spec.Ports[0].Port != 80 || svc.Spec.ClusterIP == "" {
		t.Errorf("derived Service %+v", svc.Spec)
	}
	until(ctx, t, "the nodes are linked", func() error {
		_, err := p.a.Control.Dynamic.Resource(siteNodes).Get(ctx, "b.node-1", metav1.GetOptions{})
		if err == nil {
			_, err = p.b.Control.Dynamic.Resource(siteNodes).Get(ctx, "a.node-1",
				metav1.GetOptions{})
		}
		return err
	})
	until(ctx, t, "the link is ready", func() error {
		c, err := p.a.conditions(ctx, links, "", "b")
		if err != nil || !strings.HasPrefix(c["Readable"], "True") ||
			!strings.HasPrefix(c["Overlap"],
				"False") || !strings.HasPrefix(c["TokenEnds"], "True") {
			return fmt.Errorf("conditions %q: %w", c, err)
		}
		return nil
	})

	p.b.unexport(ctx, t, "db")
	until(ctx, t, "db is not served any more", func() error { return p.a.gone(ctx, "db") })
}

// copied checks that an import gets the labels and annotations that its export lists, and no other.
// The export shows what is not copied. A label that a user adds is removed, and the user's
// preference stays.
func (p pair) copied(ctx context.Context, t *testing.T) {
	t.Helper()
	patch := func(s *side, kind schema.GroupVersionResource, text string) {
		t.Helper()
		_, err := s.Control.Dynamic.Resource(kind).Namespace("shop").Patch(ctx, "web",
			types.MergePatchType, []byte(text), metav1.PatchOptions{})
		errtest.Must(t, err)
	}

	patch(p.a, imports, `{"metadata":{"labels":{"mine":"x"},"annotations":{"kubeveil.io/prefer":"local"}}}`)
	patch(p.b, exports, `{"metadata":{"labels":{"own":"x"}},"spec":{"exportedLabels":{"team":"b",`+
		`"kubeveil.io/x":"y"},"exportedAnnotations":{"example.com/note":"n"}}}`)
	until(ctx, t, "labels are copied", func() error {
		i, _, err := p.a.served(ctx, "web")
		if err != nil || len(i.Labels) != 2 || i.Labels["team"] != "b" || len(i.Annotations) != 3 ||
			i.Annotations["example.com/note"] != "n" ||
			i.Annotations[mirror.PreferAnnotation] != mirror.PreferLocal {
			return fmt.Errorf("labels %q, annotations %q: %w", i.Labels, i.Annotations, err)
		}
		c, err := p.b.conditions(ctx, exports, "shop", "web")
		if err != nil || !strings.HasPrefix(c["Ready"], `True Exported: the label "kubeveil.io/x" `+
			"is not copied: names in the domain kubeveil.io are reserved") {
			return fmt.Errorf("conditions %q: %w", c, err)
		}
		return nil
	})
	patch(p.b, exports, `{"spec":{"exportedLabels":null,"exportedAnnotations":null}}`)
	patch(p.a, imports, `{"metadata":{"annotations":{"kubeveil.io/prefer":null}}}`)
	until(ctx, t, "labels are removed again", func() error {
		i, _, err := p.a.served(ctx, "web")
		if err != nil || len(i.Labels) != 1 || len(i.Annotations) != 1 {
			return fmt.Errorf("labels %q, annotations %q: %w", i.Labels, i.Annotations, err)
		}
		return nil
	})
}

// gone returns an error if an object of the import shop/NAME is left.
func (s *side) gone(ctx context.Context, name string) error {
	if _, _, err := s.served(ctx, name); !apierrors.IsNotFound(err) {
		return fmt.Errorf("the import is there: %w", err)
	}
	if _, err := s.Control.Client.CoreV1().Services("shop").Get(ctx, mirror.DerivedName(name),
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return fmt.Errorf("the derived Service is there: %w", err)
	}
	list, err := s.Control.Client.DiscoveryV1().EndpointSlices("shop").List(ctx, metav1.ListOptions{
		LabelSelector: "multicluster.kubernetes.io/service-name=" + name})
	if err == nil && len(list.Items) > 0 {
		err = fmt.Errorf("%d EndpointSlices are there", len(list.Items))
	}
	return err
}

// a exports the service later, and headless. Its export has the conflict, and both serve it.
func (p pair) oldestWins(ctx context.Context, t *testing.T) {
	p.a.export(ctx, t, "web", true, "10.244.0.5")

	until(ctx, t, "the younger export has the condition", func() error {
		c, err := p.a.conditions(ctx, exports, "shop", "web")
		if err != nil || !strings.HasPrefix(c["Conflict"], "True ") ||
			!strings.Contains(c["Conflict"], "TypeConflict: the exports of a differ from the "+
				"export of b") {
			return fmt.Errorf("conditions %q: %w", c, err)
		}
		return nil
	})
	until(ctx, t, "both serve it", func() error {
		i, addrs, err := p.a.served(ctx, "web")
		if err != nil || i.Spec.Type != "ClusterSetIP" || len(addrs["b"]) != 2 ||
			!slices.Equal(addrs["a"], []string{"10.244.0.5"}) || len(i.Status.Clusters) != 2 {
			return fmt.Errorf("import %+v, addresses %v: %w", i, addrs, err)
		}
		return nil
	})

	p.a.unexport(ctx, t, "web")
	until(ctx, t, "b serves it alone", func() error {
		_, addrs, err := p.a.served(ctx, "web")
		if err != nil || len(addrs["a"]) > 0 || len(addrs["b"]) != 2 {
			return fmt.Errorf("addresses %v: %w", addrs, err)
		}
		return nil
	})
}

// Each account may do what it needs and no more.
func (p pair) rights(ctx context.Context, t *testing.T) {
	namespace := link.NamespacePrefix + "a"
	reader, err := dynamic.NewForConfig(nodetest.ConfigAs(p.b.Lab, p.b.token(ctx, t, namespace,
		"reader")))
	errtest.Must(t, err)
	list, err := reader.Resource(records).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) < 3 {
		t.Errorf("the reader reads %+v: %v", list, err)
	}
	for _, r := range []dynamic.ResourceInterface{reader.Resource(records),
		reader.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace(namespace),
		reader.Resource(corev1.SchemeGroupVersion.WithResource("nodes")),
		reader.Resource(siteNodes)} {
		if _, err := r.List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("the reader reads more: %v", err)
		}
	}
	forged := list.Items[0].DeepCopy()
	forged.SetName("node.forged")
	forged.SetResourceVersion("")
	if _, err := reader.Resource(records).Namespace(namespace).Create(ctx, forged,
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the reader writes: %v", err)
	}

	// The administrator may do everything by RBAC, but not write what makes nodes peers.
	until(ctx, t, "the policy is in force", func() error {
		node, err := p.a.Control.Dynamic.Resource(siteNodes).Get(ctx, "b.node-1",
			metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.SetName("b.forged")
		node.SetResourceVersion("")
		_, err = p.a.Control.Dynamic.Resource(siteNodes).Create(ctx, node, metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("an administrator writes a SiteNode: %w", err)
		}
		_, err = p.b.Control.Dynamic.Resource(records).Namespace(namespace).Create(ctx, forged,
			metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("an administrator writes a SiteRecord: %w", err)
		}
		return nil
	})

	services := p.b.as(ctx, t).Resource(corev1.SchemeGroupVersion.WithResource("services")).
		Namespace("shop")
	if err := services.Delete(ctx, "web", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("veil-site deletes a Service of others: %v", err)
	}
	roles, err := p.a.Control.Client.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
	errtest.Must(t, err)
	for _, role := range roles.Items {
		for _, rule := range role.Rules {
			if slices.Contains(rule.APIGroups, "multicluster.x-k8s.io") &&
				slices.Contains(rule.Resources, "serviceexports") && slices.Contains(rule.Verbs,
				"create") {
				t.Errorf("the role %s creates ServiceExports", role.Name)
			}
		}
	}
	review, err := p.a.Control.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx,
		&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:kube-system:veil-site",
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "create",
				Namespace: "shop",
				Group:     "multicluster.x-k8s.io", Resource: "serviceexports"}}},
		metav1.CreateOptions{})
	errtest.Must(t, err)
	if review.Status.Allowed {
		t.Error("veil-site may create a ServiceExport")
	}
}

// While API server b is away, everything stays, also in a veil-site that starts. What happened
// meanwhile is made up for.
func (p pair) away(ctx context.Context, t *testing.T) {
	p.b.gate.Set(true)
	p.a.stop()
	p.a.start(ctx)
	until(ctx, t, "the link is not readable", func() error {
		c, err := p.a.conditions(ctx, links, "", "b")
		if err != nil || !strings.HasPrefix(c["Readable"], "False") {
			return fmt.Errorf("conditions %q: %w", c, err)
		}
		return nil
	})

	// A round writes this export's endpoints after all deletions of the same round.
	p.a.export(ctx, t, "own", false, "10.244.0.8")
	until(ctx, t, "a's own export is served", func() error {
		_, addrs, err := p.a.served(ctx, "own")
		if err != nil || len(addrs["a"]) != 1 {
			return fmt.Errorf("addresses %v: %w", addrs, err)
		}
		return nil
	})
	_, addrs, err := p.a.served(ctx, "web")
	if err != nil || len(addrs["b"]) != 2 {
		t.Fatalf("web of b is not kept: %v, %v", addrs, err)
	}
	if _, err := p.a.Control.Dynamic.Resource(siteNodes).Get(ctx, "b.node-1",
		metav1.GetOptions{}); err != nil {
		t.Fatalf("the node of b is not kept: %v", err)
	}

	p.b.unexport(ctx, t, "web")
	until(ctx, t, "b does not state web", func() error {
		_, err := p.b.Control.Dynamic.Resource(records).Namespace(link.NamespacePrefix+"a").Get(ctx,
			record.NameOfService(record.Key{Namespace: "shop", Name: "web"}), metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the record is there: %w", err)
		}
		return nil
	})
	p.b.gate.Set(false)
	begin := time.Now()
	until(ctx, t, "web is gone in a", func() error { return p.a.gone(ctx, "web") })
	t.Logf("an unexport while the API server was away took %v", time.Since(begin))
	p.b.exportOnly(ctx, t, "web")
	until(ctx, t, "web is back", func() error {
		_, addrs, err := p.a.served(ctx, "web")
		if err != nil || len(addrs["b"]) != 2 {
			return fmt.Errorf("addresses %v: %w", addrs, err)
		}
		return nil
	})
}

// A veil-site whose configuration has no site leaves nothing behind but its own exports.
func (p pair) unlinked(ctx context.Context, t *testing.T) {
	p.a.stop()
	p.a.sites = nil
	p.a.start(ctx)
	until(ctx, t, "nothing of b is left", func() error {
		for _, kind := range []string{"sitenodes", "sitelinks", "siterecords"} {
			list, err := p.a.Control.Dynamic.Resource(kubeveil.WithResource(kind)).List(ctx,
				metav1.ListOptions{})
			if err != nil || len(list.Items) > 0 {
				return fmt.Errorf("%d %s are left: %w", len(list.Items), kind, err)
			}
		}
		return p.a.gone(ctx, "web")
	})
	if _, addrs, err := p.a.served(ctx, "own"); err != nil || len(addrs["a"]) != 1 {
		t.Errorf("own is served at %v: %v", addrs, err)
	}
}
