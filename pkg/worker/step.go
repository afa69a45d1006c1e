package worker

// Steps of a handover in the process that serves the device, for DeviceOptions.Step.
const (
	StepHello    = "hello"    // a successor has connected and is ready
	StepBase     = "base"     // the base is sent
	StepExported = "exported" // the threads are stopped, and the state is written
	StepSent     = "sent"     // the state is sent
	StepTaken    = "taken"    // the successor has confirmed that it has the state
	StepGone     = "gone"     // "go" is sent, and the keys are not forgotten yet
)

// Steps of a handover in the successor, for DeviceOptions.Step.
const (
	StepPrepared = "prepared" // its device exists, without state
	StepFilled   = "filled"   // the base is in the device
	StepReceived = "received" // the state and the descriptors are here
	StepImported = "imported" // the state is in the device
	StepTold     = "told"     // "taken" is sent
	StepGo       = "go"       // "go" is received
	StepStarted  = "started"  // the device sends
)
