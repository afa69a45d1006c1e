package conformance

// volumeReasons is the reviewed table for the specs of volumes. The first match counts. Specs that
// skip themselves because of testdriver.yaml state their own reason.
var volumeReasons = []reason{
	{fate: notRun, pattern: `\[Feature:Windows\]`,
		why: "it is for nodes with Windows"},
	{fate: notRun, pattern: `\[Feature:volumegroupsnapshot\]`,
		why: "the driver's volumes have no groups"},
	{fate: notRun, pattern: `\[Feature:snapshotmetadata\]`,
		why: "the driver does not say which blocks a snapshot has: that is the access pattern, " +
			"which it does not give away"},
	{fate: notRun, pattern: `\[Feature:VolumeAttributesClass\]`,
		why: "no parameter of a volume can be changed"},
	{fate: notRun, pattern: `\[Feature:SELinux\]`,
		why: "the nodes of the lab have no SELinux"},
	{fate: notRun, pattern: `\[Disruptive\]`,
		why: "it restarts kubelets by the SSH of a cloud's provider; make e2e-storage kills the " +
			"driver and takes the node's power"},
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
		why: "a snapshot that a person brings is of no node until he labels it (distributed " +
			"snapshots), which the test does not"},
	{fate: notRun, pattern: `volumeLimits`,
		why: "nothing is attached, so there is no limit to be tested"},
	{fate: fails, pattern: `Dynamic Snapshot \(retain policy\)\] snapshottable-stress`,
		when: func(f Facts) bool { return f.Emulated },
		why: "upstream: its clean-up changes a content's policy to Delete and deletes the " +
			"snapshot in the same moment; a snapshot controller that has not seen the first " +
			"leaves the content, and the test waits for its end"},
}
