package conformance

// volumeReasons is the reviewed table for the specs of volumes. The first match counts. Specs that
// skip themselves because of testdriver.yaml state their own reason.
var volumeReasons = []reason{
	{fate: notRun, pattern: `\[Feature:Windows\]`,
		why: "it is for nodes with Windows"},
	{fate: notRun, pattern: `\[Feature:volumegroupsnapshot\]`,
		why: "the driver's volumes have no groups"},
	{fate: notRun, pattern: `\[Feature:snapshotmetadata\]`,
		why: "the driver does not disclose which blocks a snapshot has, because that would " +
			"disclose the access pattern"},
	{fate: notRun, pattern: `\[Feature:VolumeAttributesClass\]`,
		why: "no parameter of a volume can be changed"},
	{fate: notRun, pattern: `\[Feature:SELinux\]`,
		why: "the nodes of the lab have no SELinux"},
	{fate: notRun, pattern: `\[Disruptive\]`,
		why: "it restarts kubelets over the SSH access of a cloud provider; make e2e-storage " +
			"kills the driver and cuts the node's power"},
	{fate: notRun, pattern: `\(immediate[ -]binding\)`,
		why: "a volume is made on the node of its first pod, so claims that do not wait for one " +
			"are not provisioned"},
	{fate: notRun, pattern: `\[Testpattern: (Pre-provisioned PV|Inline-volume) `,
		why: "the upstream makes no volumes beforehand for a driver that a file describes"},
	{fate: notRun, pattern: `\[Testpattern: CSI Ephemeral-volume `,
		why: "a volume belongs to a claim: the driver has no inline volumes of pods"},
	{fate: notRun, pattern: `any volume data source`,
		why: "it installs a populator whose image is not among those of hack/conformance"},
	{fate: notRun, pattern: `Pre-provisioned Snapshot`,
		why: "a VolumeSnapshotContent that a user makes needs a label with its node " +
			"(distributed snapshots), which the test does not set"},
	{fate: notRun, pattern: `volumeLimits`,
		why: "volumes are not attached, so they have no limit to test"},
	{fate: fails, pattern: `Dynamic Snapshot \(retain policy\)\] snapshottable-stress`,
		when: func(f Facts) bool { return f.Emulated },
		why: "upstream: its clean-up changes a content's policy to Delete and immediately " +
			"deletes the snapshot; a snapshot controller that has not seen the change yet " +
			"keeps the content, and the test waits until the content is gone"},
}
