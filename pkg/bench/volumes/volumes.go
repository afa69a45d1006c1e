package volumes

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/disk"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// RunConfig configures Run. Class, Baseline, Platform (see pkg/bench) and Rounds must be set.
type RunConfig struct {
	// Choice has the defaults of SetDefaults for its other fields, and the only part.
	suite.Choice
	// Class and Baseline are names of StorageClasses.
	Class, Baseline string
	// Node is the node on which the pods run; empty leaves the choice to the scheduler.
	Node string
	// Size is the size of each file in bytes. Each claim is larger by a quarter.
	Size int64
	// Sample is the duration of a measurement.
	Sample time.Duration
	// Platform is the platform of the nodes.
	Platform string
}

// quantity is one case: its name, title and unit, and the job that measures it.
type quantity struct {
	name, title string
	unit        bench.Unit
	job         disk.Job
}

const mib = 1 << 20

// quantities are the figures of every run.
var quantities = []quantity{
	{"randread_4k", "4k random read, 64 at once", bench.IOPS, disk.Job{Block: 4096, Depth: 64}},
	{"randwrite_4k", "4k random write, 64 at once", bench.IOPS,
		disk.Job{Block: 4096, Depth: 64, Write: true}},
	{"randread_1024k", "1024k random read, 16 at once", bench.Mbps,
		disk.Job{Block: mib, Depth: 16}},
	{"randwrite_1024k", "1024k random write, 16 at once", bench.Mbps,
		disk.Job{Block: mib, Depth: 16, Write: true}},
	{"randread_qd1", "4k random read, one at a time", bench.Millisecond,
		disk.Job{Block: 4096, Depth: 1}},
	{"randwrite_qd1", "4k random write, one at a time", bench.Millisecond,
		disk.Job{Block: 4096, Depth: 1, Write: true}},
}

// sample returns the result of the quantity's job in the quantity's unit.
func (q quantity) sample(r disk.Result) bench.Sample {
	switch q.unit {
	case bench.IOPS:
		return bench.Sample{Value: r.IOPS()}
	case bench.Mbps:
		return bench.Sample{Value: r.IOPS() * float64(q.job.Block) * 8 / 1e6}
	}
	return bench.Sample{Value: bench.Millis(r.P50), P99: bench.Millis(r.P99)}
}

// side is a claim with its pod.
type side struct {
	name, class string
	pod         *remote.Pod
}

// Names of the sides.
const (
	ours     = "ours"
	baseline = "baseline"
)

const (
	// at is the mount point of the volume in the pod. file is the measured file on it.
	at   = "/data"
	file = at + "/load"
)

// benchmark has one part. No gate judges its cases.
var benchmark = suite.Suite[*run]{Name: "bench-volumes", Whole: true, Elsewhere: true,
	Parts: []suite.Part[*run]{{Name: "claims", Run: (*run).measure}}}

// run is one run of the suite.
type run struct {
	RunConfig
	*suite.Run
	cluster   *remote.Cluster
	namespace *remote.Namespace
	sides     []*side
}

// Run makes a claim of each class, measures them, removes everything, and returns the report. If
// ctx ends, the report has what was measured until then.
func Run(ctx context.Context, k *remote.Cluster, o RunConfig) (*report.Report, error) {
	o.Parts = benchmark.Names()
	o.SetDefaults(o.Rounds, nil)
	return benchmark.Run(ctx, o.Choice, func(ctx context.Context, frame *suite.Run) (*run, error) {
		r := &run{RunConfig: o, Run: frame, cluster: k, sides: []*side{{name: ours, class: o.Class},
			{name: baseline, class: o.Baseline}}}
		return r, r.begin(ctx)
	})
}

// begin makes the claims and their pods, and starts the result with the properties of their node.
func (r *run) begin(ctx context.Context) (err error) {
	if err := r.checkClasses(ctx); err != nil {
		return err
	}
	if r.namespace, err = r.cluster.Namespace(ctx, "kubeveil-bench", remote.Baseline); err != nil {
		return err
	}
	for _, s := range r.sides {
		if err := r.start(ctx, s); err != nil {
			return fmt.Errorf("class %s: %w", s.class, err)
		}
	}
	for _, q := range quantities {
		r.Labels[q.name], r.Labels[q.name+"_p99"] = q.title, q.title+", 99th percentile"
	}
	if err := r.On(r.Platform); err != nil {
		return err
	}
	return r.describe(ctx)
}

// Close removes the namespace with the claims and pods.
func (r *run) Close() error {
	if r.namespace == nil {
		return nil
	}
	return r.namespace.Close(context.Background())
}

// checkClasses returns an error unless both classes exist. A claim of a missing class would wait
// for ever.
func (r *run) checkClasses(ctx context.Context) error {
	for _, s := range r.sides {
		if _, err := r.cluster.Client.StorageV1().StorageClasses().Get(ctx, s.class,
			metav1.GetOptions{}); err != nil {
			return fmt.Errorf("class %s: %w", s.class, err)
		}
	}
	return nil
}

// start makes the claim and its pod, and fills the file. The second pod runs on the node of the
// first.
func (r *run) start(ctx context.Context, s *side) error {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &s.class, AccessModes: []corev1.PersistentVolumeAccessMode{
				corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(r.Size+
					r.Size/4, resource.BinarySI)}},
		},
	}
	if _, err := r.cluster.Client.CoreV1().PersistentVolumeClaims(r.namespace.Name).Create(ctx,
		claim, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create claim: %w", err)
	}

	s.pod = &remote.Pod{Name: s.name, Change: func(p *corev1.Pod) {
		// A node selector, not Spec.NodeName: with WaitForFirstConsumer only the scheduler selects
		// the node of a claim.
		if r.Node != "" {
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: r.Node}
		}
		p.Spec.Volumes = append(p.Spec.Volumes,
			corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: s.name},
			}})
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts,
			corev1.VolumeMount{Name: "data", MountPath: at})
	}}

	r.Progress("%s: a claim of class %s", s.name, s.class)
	if err := r.namespace.Run(ctx, s.pod); err != nil {
		return err
	}

	r.Node = s.pod.Node
	r.Progress("%s: on node %s; filling %d MiB", s.name, r.Node, r.Size/mib)
	_, err := s.pod.Exec(ctx, "veil-tools", "disk-load", "--file", file,
		"--size", fmt.Sprint(r.Size), "--rw", "fill")
	return err
}

// load runs the job of a quantity in the pod of a side.
func (r *run) load(ctx context.Context, s *side, q quantity) (bench.Sample, error) {
	out, err := s.pod.Exec(ctx, command(q.job, r.Size, r.Sample)...)
	if err != nil {
		return bench.Sample{}, err
	}
	var got disk.Result
	if err := json.Unmarshal(out, &got); err != nil {
		return bench.Sample{}, fmt.Errorf("output of veil-tools disk-load: %w", err)
	}
	if got.Ops < 1 || got.Took <= 0 {
		return bench.Sample{}, fmt.Errorf("veil-tools disk-load measured nothing: %s",
			strings.TrimSpace(string(out)))
	}
	return q.sample(got), nil
}

// command returns the command line that runs a job in a pod.
func command(j disk.Job, size int64, sample time.Duration) []string {
	rw := "randread"
	if j.Write {
		rw = "randwrite"
	}
	return []string{"veil-tools", "disk-load", "--file", file, "--size", fmt.Sprint(size),
		"--block", fmt.Sprint(j.Block), "--depth", fmt.Sprint(j.Depth),
		"--for", sample.String(), "--rw", rw}
}

// measure measures all quantities of both claims.
func (r *run) measure(ctx context.Context) error {
	var all []bench.Comparison
	for _, q := range quantities {
		measure := func(s *side) bench.Measure {
			return func(ctx context.Context) (bench.Sample, error) { return r.load(ctx, s, q) }
		}
		all = append(all, bench.Comparison{Name: q.name, Unit: q.unit, Ours: measure(r.sides[0]),
			Base: measure(r.sides[1]), BaseName: r.Baseline})
	}
	return r.Both(ctx, all)
}

// describe sets the kernel and the number of CPUs of the node in the result.
func (r *run) describe(ctx context.Context) error {
	node, err := r.cluster.Client.CoreV1().Nodes().Get(ctx, r.Node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("node %s: %w", r.Node, err)
	}
	r.Result.Kernel = node.Status.NodeInfo.KernelVersion
	if n := node.Status.Capacity.Cpu().Value(); n > 0 {
		r.Result.CPUs = int(n)
	}
	return nil
}

// Report returns the title and the notes of the report.
func (r *run) Report() *report.Report {
	return &report.Report{
		Title: fmt.Sprintf("Volumes of class %s beside class %s", r.Class, r.Baseline),
		Lead: fmt.Sprintf("One node, %s, kernel %s, %d CPUs; a claim of each class with its pod.",
			r.Node, r.Result.Kernel, r.Result.CPUs),
		Banner: "Cluster",
		Notes: []string{
			fmt.Sprintf("A file of %d MiB on each volume's file system, written first; random "+
				"places of it, past the page cache (O_DIRECT), %v a sample.", r.Size/mib, r.Sample),
			"Both volumes are there all the time, and one is measured at a time. Whether " +
				"they are " +
				"on the same disk is the cluster's matter: a ratio shows what encryption costs " +
				"only where they are.",
			fmt.Sprintf("%d rounds, order drawn with seed %d; ratios are medians of those formed "+
				"in each round.", r.Rounds, r.Seed),
		},
	}
}
