// The camera: a stream of frames, each given to the model when it has answered the one before.

export class Camera {
  constructor() {
    this.video = document.createElement("video");
    this.video.muted = this.video.playsInline = true;
    this.facing = "environment";
    this.stream = null;
  }

  get running() {
    return this.stream !== null;
  }

  async start() {
    const wished = { facingMode: { ideal: this.facing }, width: { ideal: 1280 } };
    const stream = await navigator.mediaDevices.getUserMedia({ video: wished, audio: false });
    this.stream = stream;
    this.video.srcObject = stream;
    await this.video.play();
  }

  stop() {
    for (const track of this.stream?.getTracks() ?? []) track.stop();
    this.video.srcObject = this.stream = null;
  }

  async flip() {
    this.facing = this.facing === "environment" ? "user" : "environment";
    this.stop();
    await this.start();
  }

  async several() {
    const devices = await navigator.mediaDevices.enumerateDevices();
    return devices.filter(({ kind }) => kind === "videoinput").length > 1;
  }

  // Calls `draw` for every frame that is shown, until the camera stops.
  follow(draw) {
    const step = () => {
      if (!this.running) return;
      if (this.video.videoWidth) draw(this.video);
      requestAnimationFrame(step);
    };
    step();
  }
}
