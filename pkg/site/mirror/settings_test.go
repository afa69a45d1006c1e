package mirror_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// The import and the derived Service have the settings of the exported Service.
func TestImportHasTheSettingsOfTheService(t *testing.T) {
	for name, c := range map[string]struct {
		local        bool
		distribution string
		affinity     int32
		policy       corev1.ServiceInternalTrafficPolicy
	}{
		"defaults":    {policy: corev1.ServiceInternalTrafficPolicyCluster},
		"all of them": {true, "PreferClose", 10, corev1.ServiceInternalTrafficPolicyLocal},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			s := in.Sites[0].Services[web]
			s.InternalLocal, s.TrafficDistribution, s.AffinitySeconds = c.local, c.distribution,
				c.affinity
			m := mirror.Plan(in).Imports[web]
			i, err := m.ServiceImport(web, nil)
			errtest.Must(t, err)

			d, is := m.Derived(web).Spec, i.Spec
			if *is.InternalTrafficPolicy != c.policy || *d.InternalTrafficPolicy != c.policy ||
				(is.TrafficDistribution == nil) != (c.distribution == "") ||
				is.TrafficDistribution != nil && *is.TrafficDistribution != c.distribution ||
				(is.SessionAffinity == corev1.ServiceAffinityClientIP) != (c.affinity > 0) ||
				d.SessionAffinity != is.SessionAffinity {
				t.Errorf("import %+v, derived Service %+v", is, d)
			}
			if got := mirror.ServiceOf(*i); got.InternalLocal != c.local ||
				got.TrafficDistribution != c.distribution || got.AffinitySeconds != c.affinity {
				t.Errorf("the import describes %+v", got)
			}
		})
	}
}

// An import has as many families as addresses, in the same order: this cluster may have only one of
// the families of the service, or the other one first.
func TestImportHasTheFamiliesOfItsAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		ips  []string
		want []corev1.IPFamily
	}{
		"no address yet": {nil, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}},
		"IPv4 only":      {[]string{"10.96.0.9"}, []corev1.IPFamily{corev1.IPv4Protocol}},
		"IPv6 first": {[]string{"fd00::9", "10.96.0.9"},
			[]corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			in.Sites[0].Services[web].V6 = true
			i, err := mirror.Plan(in).Imports[web].ServiceImport(web, c.ips)
			errtest.Must(t, err)
			if !slices.Equal(i.Spec.IPFamilies, c.want) {
				t.Errorf("families %q, want %q", i.Spec.IPFamilies, c.want)
			}
		})
	}
}

// Two clusters that export a service one after the other agree about which was first, although each
// sees the other's export only later. A time that a site states counts within ten seconds.
func TestStatedAgeIsTrustedForTenSeconds(t *testing.T) {
	for name, c := range map[string]struct {
		stated time.Time
		own    time.Duration // age of the export of this cluster
		oldest string
	}{
		"the site was first":            {now.Add(-3 * time.Second), 2 * time.Second, "b"},
		"the site was second":           {now.Add(-time.Second), 2 * time.Second, "a"},
		"nothing is stated":             {time.Time{}, 2 * time.Second, "a"},
		"forged, before our export":     {time.Unix(0, 0), 11 * time.Second, "a"},
		"the site's clock is ahead":     {now.Add(time.Hour), 0, "a"},
		"forged, and ours is quite new": {time.Unix(0, 0), 9 * time.Second, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			in.Sites[0].Services[web].Created = c.stated
			in.Own = map[record.Key]mirror.Own{web: {Created: now.Add(-c.own),
				Service: service("10.244.1.5")}}
			if got := mirror.Plan(in).Imports[web].Sources[0].Cluster; got != c.oldest {
				t.Errorf("the oldest is %s, want %s", got, c.oldest)
			}
		})
	}
}

// Each kind of difference has its reason, and each cluster that differs is named.
func TestConflictsNameTheReasonAndTheClusters(t *testing.T) {
	for reason, change := range map[string]func(*record.Service){
		"TypeConflict":                  func(s *record.Service) { s.Headless = true },
		"SessionAffinityConflict":       func(s *record.Service) { s.AffinitySeconds = 0 },
		"SessionAffinityConfigConflict": func(s *record.Service) { s.AffinitySeconds = 20 },
		"InternalTrafficPolicyConflict": func(s *record.Service) { s.InternalLocal = true },
		"TrafficDistributionConflict":   func(s *record.Service) { s.TrafficDistribution = "x" },
		"IPFamilyConflict":              func(s *record.Service) { s.V6 = true },
		"PortConflict":                  func(s *record.Service) { s.Ports[0].Port++ },
		"LabelsConflict": func(s *record.Service) {
			s.Labels = map[string]string{"team": "b"}
		},
		"AnnotationsConflict": func(s *record.Service) {
			s.Annotations = map[string]string{"note": "b"}
		},
	} {
		t.Run(reason, func(t *testing.T) {
			in := input()
			own := service("10.244.1.5")
			own.AffinitySeconds = 10
			in.Own = map[record.Key]mirror.Own{web: {Created: now.Add(-time.Hour), Service: own}}
			in.Sites = append(in.Sites, mirror.Site{Head: &record.Head{Open: true},
				Services: map[record.Key]*record.Service{web: service("10.246.1.5")},
				Site: cluster.Site{Name: "c", Reach: cluster.ReachAll, Imports: []string{"shop"},
					PodRanges:  nettest.Prefixes("10.246.0.0/16"),
					NodeRanges: nettest.Prefixes("203.0.113.0/24")}})
			for i := range in.Sites {
				in.Sites[i].Services[web].AffinitySeconds = 10
				change(in.Sites[i].Services[web])
			}

			m := mirror.Plan(in).Imports[web]
			if !slices.Equal(m.Reasons, []string{reason}) ||
				!strings.Contains(m.Conflict, "the exports of b, c differ from the export of a") {
				t.Errorf("reasons %q: %s", m.Reasons, m.Conflict)
			}
		})
	}
}

// Only endpoints of this cluster have the name of their node.
func TestNodesOfOtherClustersAreNotNamed(t *testing.T) {
	in := input()
	own := service("10.244.1.5")
	own.Slices[0].Endpoints[0].Node = "node-1"
	in.Sites[0].Services[web].Slices[0].Endpoints[0].Node = "node-1"
	in.Own = map[record.Key]mirror.Own{web: {Service: own}}
	for _, s := range mirror.Plan(in).Imports[web].EndpointSlices(web) {
		from, node := s.Labels["multicluster.kubernetes.io/source-cluster"], s.Endpoints[0].NodeName
		if from == "a" && (node == nil || *node != "node-1") || from == "b" && node != nil {
			t.Errorf("endpoint of %s: %+v", from, s.Endpoints[0])
		}
	}
}

// An import has the labels and annotations of its oldest export, also while the site is not read.
// Other labels of the import are removed. The user's preference stays.
func TestImportHasTheLabelsOfTheExport(t *testing.T) {
	labels, notes := map[string]string{"team": "b"}, map[string]string{"example.com/note": "n"}
	in := input()
	in.Sites[0].Services[web].Labels, in.Sites[0].Services[web].Annotations = labels, notes
	in.Existing = map[record.Key]mirror.Existing{web: {PreferLocal: true}}
	i, err := mirror.Plan(in).Imports[web].ServiceImport(web, nil)
	errtest.Must(t, err)
	if i.Labels["team"] != "b" || i.Labels[mirror.ManagedByLabel] != mirror.ManagedBy ||
		i.Annotations["example.com/note"] != "n" || i.Annotations[mirror.PreferAnnotation] == "" ||
		i.Annotations[mirror.FirstAnnotation] == "" {
		t.Errorf("labels %v, annotations %v", i.Labels, i.Annotations)
	}

	in.Sites[0].Head = nil // not read
	in.Existing[web] = mirror.Existing{First: map[string]time.Time{"b": now},
		Service: mirror.ServiceOf(*i)}
	again, err := mirror.Plan(in).Imports[web].ServiceImport(web, nil)
	errtest.Must(t, err)
	if !mirror.SameMeta(*i, *again) {
		t.Errorf("not read: labels %v, annotations %v", again.Labels, again.Annotations)
	}
	again.Annotations[mirror.PreferAnnotation] = mirror.PreferLocal
	if !mirror.SameMeta(*i, *again) {
		t.Error("the user's preference counts as a difference")
	}
	again.Labels["mine"] = "x"
	if mirror.SameMeta(*i, *again) {
		t.Error("another label does not count as a difference")
	}
}

// A label that a site may not give is refused and shown. The service is imported.
func TestReservedLabelsOfASiteAreShown(t *testing.T) {
	in := input()
	in.Sites[0].Services[web].NotCopied = "the label x is not copied"
	out := mirror.Plan(in)
	if r := out.Reports["b"]; r.Refused != 1 || r.Imports != 1 ||
		!slices.Equal(r.Problems, []string{"service shop/web: the label x is not copied"}) {
		t.Errorf("%+v", r)
	}
}

// Endpoints of a cluster whose service has a port of the same name with another number do not serve
// the import's port. Those with a port of another name serve that one.
func TestEndpointsServeThePortsOfTheirService(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*record.Port)
		want   []string // of the site and of this cluster
	}{
		"the same":       {func(*record.Port) {}, []string{"b http", "a http"}},
		"another number": {func(p *record.Port) { p.Port = 8080 }, []string{"b http"}},
		"another name": {func(p *record.Port) { p.Name, p.Port = "more", 8080 },
			[]string{"b http", "a more"}},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			own := service("10.244.1.5")
			c.change(&own.Ports[0])
			own.Slices[0].Ports[0].Name = own.Ports[0].Name
			in.Own = map[record.Key]mirror.Own{web: {Created: now.Add(time.Hour), Service: own}}
			var got []string
			for _, s := range mirror.Plan(in).Imports[web].EndpointSlices(web) {
				for _, p := range s.Ports {
					site := s.Labels["multicluster.kubernetes.io/source-cluster"]
					got = append(got, site+" "+*p.Name)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("served are %q, want %q", got, c.want)
			}
		})
	}
}
