from tests.support.chat import image, rendered, spelled, user, zoo, zoo_renderer


def test_an_image_stands_where_the_template_puts_it():
    renderer = zoo_renderer(zoo("loop"))
    prompt = rendered(renderer, user("A", image(), "B", image(), "C"))
    assert spelled(renderer, prompt) == (
        "⟦<|start|>⟧user\nA⟦<|vision_start|>⟧⟦0⟧⟦<|vision_end|>⟧B⟦<|vision_start|>⟧⟦1⟧⟦<|vision_end|>⟧C"
        "⟦<|end|>⟧\n⟦<|start|>⟧assistant\n"
    )
    assert prompt.renders == 2
